# SPDX-License-Identifier: Apache-2.0
"""Descriptors that other processes sent are closed in threads that may block. Up to THREADS_MAX
users, while their descriptors are being closed, have a thread each; further users share one."""

from __future__ import annotations

import os
import socket
import struct
import threading

from sentineld.base.closing import (
    CLOSING_MAX,
    THREADS_MAX,
    close_untrusted,
    closing,
    run_untrusted,
    too_many,
)
from tests.unit.waiting import wait

LINGER_S = 600
"""Seconds for which close() of a lingering() socket blocks, unless its other end is closed."""


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def lingering() -> tuple[int, socket.socket]:
    """A socket with unsent data, and its other end, which reads nothing. close() of the socket
    blocks until the other end is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    sender.setblocking(True)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    return sender.detach(), receiver


def test_a_close_that_blocks_delays_neither_the_caller_nor_other_users() -> None:
    fd, receiver = lingering()
    other = os.memfd_create("other")
    close_untrusted(1000, fd)
    close_untrusted(1001, other)
    wait(lambda: not is_open(other))
    assert closing(1000) == 1
    receiver.close()
    wait(lambda: not closing(1000))
    assert not is_open(fd)


def test_a_user_with_too_many_is_refused_until_they_are_closed() -> None:
    release = threading.Event()
    run_untrusted(1002, release.wait)
    fds = [os.memfd_create("waiting") for _ in range(CLOSING_MAX - 1)]
    for fd in fds[1:]:
        close_untrusted(1002, fd)
    assert not too_many(1002)
    close_untrusted(1002, fds[0])
    assert too_many(1002)
    assert not too_many(1003)
    assert all(map(is_open, fds))
    release.set()
    wait(lambda: not closing(1002))
    assert not any(map(is_open, fds))


def test_the_threads_are_limited_and_end() -> None:
    wait(lambda: not closing_threads())  # earlier tests may have left threads
    release = threading.Event()
    users = range(2000, 2000 + 2 * THREADS_MAX)
    for uid in users:
        run_untrusted(uid, release.wait)
    assert closing_threads() <= THREADS_MAX + 1
    release.set()
    wait(lambda: not any(map(closing, users)))
    wait(lambda: not closing_threads())


def closing_threads() -> int:
    return sum(thread.name.startswith("closing-") for thread in threading.enumerate())


def test_a_call_that_fails_does_not_end_the_others() -> None:
    close_untrusted(1004, 1 << 20)  # no such descriptor
    run_untrusted(1004, lambda: 1 // 0)
    fd = os.memfd_create("last")
    close_untrusted(1004, fd)
    wait(lambda: not closing(1004))
    assert not is_open(fd)
