# SPDX-License-Identifier: Apache-2.0
"""drop() returns immediately, even if a connection's receive queue holds descriptors whose close()
blocks."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from typing import Any

import pytest

from sentineld.base import dropping
from sentineld.base.dropping import drop, held
from tests.unit.control.lingering import LINGER_S, lingering, send_away
from tests.unit.waiting import wait


def test_a_connection_without_unread_data_is_closed_at_once() -> None:
    ours, theirs = socket.socketpair()
    drop(ours)
    assert ours.fileno() == -1
    assert theirs.recv(1) == b""
    theirs.close()


def test_an_unread_descriptor_whose_close_blocks_does_not_block() -> None:
    ours, theirs = socket.socketpair()
    with lingering() as stuck:
        send_away(theirs, b"x", [stuck.fileno()])
        stuck.close()
        begin_s = time.monotonic()
        drop(ours)
        assert theirs.recv(1) == b""  # the peer sees the connection's end immediately
        wait(lambda: not held())
        assert time.monotonic() - begin_s < LINGER_S / 2
    theirs.close()


def test_the_peer_can_send_nothing_after_the_queue_was_looked_at() -> None:
    ours, theirs = socket.socketpair()
    theirs.send(b"x")
    drop(ours)
    with pytest.raises(BrokenPipeError):
        theirs.send(b"x")
    theirs.close()
    wait(lambda: not held())


def test_connections_wait_until_a_child_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dropping, "RETRY_S", 0.05)
    start, possible, failures = subprocess.Popen, threading.Event(), []

    def start_if_possible(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        if not possible.is_set():
            failures.append(1)
            raise BlockingIOError(11, "no process can be started")
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start_if_possible)
    pairs = [socket.socketpair() for _ in range(5)]
    for ours, theirs in pairs:
        theirs.send(b"x")
        drop(ours)
    wait(lambda: len(failures) >= 2)
    assert held() == len(pairs)
    possible.set()
    wait(lambda: not held())
    for _, theirs in pairs:
        theirs.close()
