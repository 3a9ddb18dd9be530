# SPDX-License-Identifier: Apache-2.0
"""A process's descriptors are used only if they refer to that process. No descriptor can block the
daemon."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sentineld.observe.peer import Peer
from sentineld.observe.pidfd import Pidfd
from sentineld.observe.writefds import ReceivedWriteFds, WriteFds
from sentineld.shim import writes
from tests.unit.observe.trees import Tree
from tests.unit.waiting import wait


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


@pytest.fixture
def peer() -> Iterator[Peer]:
    made = Peer(os.getpid(), os.getuid(), os.getgid(), Pidfd(os.getpid()))
    yield made
    made.close()


def received(peer: Peer, way: str, fds: list[int]) -> WriteFds:
    return ReceivedWriteFds(peer, way, fds).take()


def test_a_process_s_own_files_are_accepted(peer: Peer) -> None:
    found = received(peer, writes.SOFT_DIRTY, fds := proc_files())
    assert (found.way, found.pagemap_fd, found.control_fd) == (writes.SOFT_DIRTY, *fds)
    found.close()
    wait(lambda: all(is_closed(fd) for fd in fds))


def test_files_of_another_process_are_refused_and_closed(tree: Tree) -> None:
    other = Peer(tree.process.pid, 0, 0, Pidfd(tree.process.pid))
    found = received(other, writes.SOFT_DIRTY, fds := proc_files())
    assert found.way == ""
    assert "not its own" in found.without(writes.SOFT_DIRTY)
    wait(lambda: all(is_closed(fd) for fd in fds))
    other.close()


@pytest.mark.parametrize("way", [writes.SOFT_DIRTY, writes.SCAN, "clear it all"])
def test_other_files_from_a_process_are_refused(peer: Peer, way: str) -> None:
    pagemap_fd, clear_refs_fd = proc_files()
    os.close(clear_refs_fd)
    trap = os.memfd_create("trap")
    assert received(peer, way, [pagemap_fd, trap]).way == ""
    wait(lambda: is_closed(trap) and is_closed(pagemap_fd))
