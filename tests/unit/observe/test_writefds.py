# SPDX-License-Identifier: Apache-2.0
"""Descriptors from a process are used only if they are its own."""

from __future__ import annotations

import os

import pytest

from sentineld.observe.writefds import WriteFds
from sentineld.shim import writes


def proc_files() -> list[int]:
    return [
        os.open("/proc/self/pagemap", os.O_RDONLY),
        os.open("/proc/self/clear_refs", os.O_WRONLY),
    ]


def is_closed(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def test_a_process_s_own_files_are_accepted() -> None:
    received = WriteFds.received(os.getpid(), writes.SOFT_DIRTY, fds := proc_files())
    assert (received.way, received.pagemap_fd, received.control_fd) == (writes.SOFT_DIRTY, *fds)
    received.close()
    assert all(is_closed(fd) for fd in fds)


def test_files_of_another_process_are_refused_and_closed() -> None:
    received = WriteFds.received(os.getpid() + 1, writes.SOFT_DIRTY, fds := proc_files())
    assert received.way == ""
    assert all(is_closed(fd) for fd in fds)


@pytest.mark.parametrize("way", [writes.SOFT_DIRTY, writes.SCAN, "clear it all"])
def test_other_files_from_a_process_are_refused(way: str) -> None:
    pagemap_fd, clear_refs_fd = proc_files()
    os.close(clear_refs_fd)
    trap = os.memfd_create("trap")
    received = WriteFds.received(os.getpid(), way, [pagemap_fd, trap])
    assert received.way == ""
    assert is_closed(trap)
