# SPDX-License-Identifier: Apache-2.0
"""Pages of real processes, queried and moved through the kernel on this machine's first node."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.node_capacity import Capacity
from sentineld.migrate.process_memory import KernelMemory
from sentineld.migrate.syscalls import BATCH_PAGES
from sentineld.model.tiers import Tier, Tiers

PAGE = mmap.PAGESIZE
ABSENT = 900
TIERS = Tiers((Tier((0,), 1 << 30), Tier((ABSENT,), 1 << 30)), 1e8, "toy")


@pytest.fixture
def pages() -> Iterator[np.ndarray]:
    """Addresses of three pages of this process; the last was never touched."""
    with mmap.mmap(-1, 3 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[0] = memory[PAGE] = 1
        held = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(held)
        del held
        yield np.arange(start, start + 3 * PAGE, PAGE, dtype=np.uint64)


@pytest.fixture
def gone() -> int:
    """The ID of a process that has exited."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_pages_have_a_node_or_are_absent(pages: np.ndarray) -> None:
    status = KernelMemory(os.getpid(), TIERS).query_pages(pages)
    assert (status[:2] >= 0).all()
    assert status[2] == -errno.ENOENT


def test_pages_move_to_a_node_and_absent_ones_do_not(pages: np.ndarray) -> None:
    memory = KernelMemory(os.getpid(), TIERS, batch_pages=2)
    result = memory.move_pages(pages, 0)
    assert result.status.tolist() == [0, 0, -errno.ENOENT]


def test_only_moved_pages_take_room(pages: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(Capacity, "moved", lambda _, node, size: taken.append((node, size)))
    KernelMemory(os.getpid(), TIERS).move_pages(pages, 0)
    assert taken == [(0, 2 * PAGE)]


def test_a_node_that_is_not_there_is_refused(pages: np.ndarray) -> None:
    memory = KernelMemory(os.getpid(), TIERS)
    try:
        result = memory.move_pages(pages, ABSENT)
    except SentinelError:
        return
    assert result.error
    assert ABSENT not in result.status.tolist()


def test_a_process_that_has_exited_is_reported(pages: np.ndarray, gone: int) -> None:
    memory = KernelMemory(gone, TIERS)
    with pytest.raises(ProcessLookupError):
        memory.query_pages(pages)
    with pytest.raises(ProcessLookupError):
        memory.move_pages(pages, 0)


def test_the_room_of_a_tier_is_its_nodes_free_memory() -> None:
    memory = KernelMemory(os.getpid(), TIERS)
    assert memory.batch_pages == BATCH_PAGES
    node, room = memory.best_node(0)
    assert node == 0
    assert room >= 0
    assert memory.best_node(1) == (ABSENT, 0)
