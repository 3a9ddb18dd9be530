# SPDX-License-Identifier: Apache-2.0
"""Datagrams to the service manager's socket."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from sentineld.service.notify import notify, watchdog_interval_s
from tests.unit.descriptors import open_descriptors


def test_each_message_is_one_datagram(manager: socket.socket) -> None:
    notify("READY=1")
    notify("WATCHDOG=1\nSTATUS=2 sessions")
    assert manager.recv(100) == b"READY=1"
    assert manager.recv(100) == b"WATCHDOG=1\nSTATUS=2 sessions"


def test_a_socket_in_the_abstract_namespace_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"sentineld-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", "@" + name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name)
        notify("STOPPING=1")
        assert listener.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "/no/such/socket"])
def test_without_a_manager_nothing_happens(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    before = open_descriptors()
    notify("READY=1")
    assert open_descriptors() <= before


def test_without_a_free_descriptor_nothing_happens(manager: socket.socket) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        notify("READY=1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    notify("STOPPING=1")
    assert manager.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize(
    ("microseconds", "pid", "interval_s"),
    [
        (None, None, None),
        ("", None, None),
        ("soon", None, None),
        ("20000000", None, 10.0),
        ("20000000", "own", 10.0),
        ("20000000", "1", None),
    ],
)
def test_the_watchdog_is_fed_if_it_watches_this_process(
    microseconds: str | None,
    pid: str | None,
    interval_s: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (
        ("WATCHDOG_USEC", microseconds),
        ("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid),
    ):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert watchdog_interval_s() == interval_s
