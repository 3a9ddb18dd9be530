# SPDX-License-Identifier: Apache-2.0
"""The kind of a received descriptor is found without a call that can block."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

import pytest

from sentineld.base.closing import closing
from sentineld.observe.received import (
    EVENTFD,
    HUGETLBFS_MAGIC,
    PROC_SUPER_MAGIC,
    close_received,
    file_system,
    link,
    seals,
)
from tests.unit.waiting import wait


def test_only_shared_memory_has_seals(tmp_path: Path) -> None:
    memory = os.memfd_create("memory", os.MFD_ALLOW_SEALING)
    assert seals(memory) == 0
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    assert seals(memory) == fcntl.F_SEAL_SHRINK
    path = os.open("/dev/shm", os.O_PATH)
    others = [os.eventfd(0), os.open("/dev/null", os.O_RDONLY), path, *os.pipe()]
    assert [seals(fd) for fd in others] == [None] * len(others)
    for fd in (memory, *others):
        os.close(fd)


def test_no_file_passes_for_an_eventfd(tmp_path: Path) -> None:
    event, named = os.eventfd(0), tmp_path / EVENTFD
    named.touch()
    file = os.open(named, os.O_RDONLY)
    assert link(event) == EVENTFD
    assert link(file) == str(named)
    os.close(event)
    os.close(file)


def test_file_systems() -> None:
    status, huge = os.open("/proc/self/status", os.O_RDONLY), os.memfd_create("huge", 4)
    assert file_system(status) == PROC_SUPER_MAGIC
    assert file_system(huge) == HUGETLBFS_MAGIC
    os.close(status)
    os.close(huge)


@pytest.mark.parametrize("kind", ["memory", "event", "socket"])
def test_every_kind_is_closed(kind: str) -> None:
    made, other = socket.socketpair()
    fd = {
        "memory": lambda: os.memfd_create("memory"),
        "event": lambda: os.eventfd(0),
        "socket": made.detach,
    }[kind]()
    close_received(3000, fd)
    if kind != "socket":
        assert not closing(3000)  # already closed, because close() of these kinds never blocks
    wait(lambda: not os.path.exists(f"/proc/self/fd/{fd}"))
    made.close()
    other.close()
