# SPDX-License-Identifier: Apache-2.0
"""Clients that do not read the daemon's answers and messages."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
from pathlib import Path

from sentineld.control.frames import encode
from tests.hostile.attack import Attack
from tests.hostile.attacker import Say
from tests.hostile.shim_client import registered

CLIENTS = 150


def ask_and_do_not_read(say: Say, control: str, count: int) -> None:
    """Send requests from sockets with the smallest receive buffer; read no answer."""
    held = []
    for _ in range(count):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with contextlib.suppress(OSError):
            client.connect(control)
            client.sendall(encode({"version": 1, "verb": "status", "arguments": {}}))
        held.append(client)
    say(len(held))
    signal.pause()


def test_answers_that_nobody_reads(attack: Attack) -> None:
    attack.start(ask_and_do_not_read, str(attack.daemon.control), CLIENTS).heard()
    attack.hold(3)
    attack.check()


def scrape_and_do_not_read(say: Say, port: int, count: int) -> None:
    held = []
    for _ in range(count):
        client = socket.socket()
        # If the backlog is full, connect() times out, but the kernel keeps trying to connect.
        client.settimeout(0.2)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        with contextlib.suppress(OSError):
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
        held.append(client)
    say(len(held))
    signal.pause()


def test_scrapes_that_nobody_reads(attack: Attack) -> None:
    attack.start(scrape_and_do_not_read, attack.daemon.metrics_port, 100).heard()
    attack.hold(3)
    attack.check()


def register_and_never_read(say: Say, shims: str) -> None:
    """Register, send refusals of layouts, and read none of the daemon's messages."""
    client, segment = registered(Path(shims))
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    say("registered")
    for number in range(1000):
        segment.set(step=number)
        with contextlib.suppress(OSError):
            client.send({"type": "layout", "layout_id": 0, "ok": False, "error": "no"})
        time.sleep(0.002)
    signal.pause()


def test_a_shim_that_reads_no_message(attack: Attack) -> None:
    for _ in range(4):
        attack.start(register_and_never_read, str(attack.daemon.shims)).heard()
    attack.hold(3)
    attack.check()
