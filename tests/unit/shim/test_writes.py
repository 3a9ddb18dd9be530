# SPDX-License-Identifier: Apache-2.0
"""Descriptors through which another process can track this process's writes.

The tests use the running kernel.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.shim import writes
from sentineld.shim.writes import SCAN, SOFT_DIRTY, open_write_watch, protect_writes
from tests.unit.descriptors import open_descriptors
from tests.unit.links import received_writes

SIZE = 4 * mmap.PAGESIZE


@pytest.fixture
def start() -> Iterator[int]:
    """Address of a mapping of SIZE bytes."""
    with mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        yield int(np.frombuffer(memory, np.uint8).ctypes.data)


def protectable(start: int) -> bool:
    try:
        os.close(protect_writes(start, SIZE))
    except OSError:
        return False
    return True


def test_the_best_way_that_the_kernel_allows_is_offered(start: int) -> None:
    wanted = SCAN if protectable(start) else SOFT_DIRTY
    way, fds = open_write_watch(start, SIZE)
    assert way == wanted
    received = received_writes(os.getpid(), way, list(fds))
    assert received.way == way  # the daemon accepts the descriptors as this process's own
    received.close()


def test_without_write_protection_soft_dirty_bits_are_offered(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(start: int, length_bytes: int) -> int:
        raise OSError(errno.EPERM, "seccomp")

    monkeypatch.setattr(writes, "protect_writes", refuse)
    way, fds = open_write_watch(start, SIZE)
    assert way == SOFT_DIRTY
    received = received_writes(os.getpid(), way, list(fds))
    assert received.way == SOFT_DIRTY
    received.close()


def test_no_descriptor_stays_open_if_there_is_no_way(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    real_open = os.open

    def refuse(path: str, flags: int) -> int:
        if path.endswith("clear_refs"):
            raise PermissionError(errno.EACCES, "no")
        return real_open(path, flags)

    def refuse_protection(start: int, length_bytes: int) -> int:
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(writes, "protect_writes", refuse_protection)
    with pytest.raises(PermissionError):
        open_write_watch(start, SIZE)
    monkeypatch.undo()
    assert open_descriptors() <= before


def test_memory_that_cannot_be_protected_leaves_no_descriptor_open() -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match=r"userfaultfd|write protection"):
        protect_writes(1, SIZE)  # not a page boundary
    assert open_descriptors() <= before


def test_a_machine_of_unknown_system_calls_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    with pytest.raises(OSError, match="known for pdp11"):
        protect_writes(0, SIZE)
