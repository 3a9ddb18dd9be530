# SPDX-License-Identifier: Apache-2.0
"""Sends readiness and watchdog messages to systemd; sd_notify(3) documents their format."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> None:
    """Send a message such as "READY=1" to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
            peer.sendto(message.encode(), address)
    except OSError:  # for example, no descriptor is free
        return  # the daemon works without the service manager, too


def watchdog_interval_s() -> float | None:
    """Half of the watchdog's time-out, or None if the watchdog is off."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(
        os.getpid()
    ):
        return None
    return int(microseconds) / 2e6
