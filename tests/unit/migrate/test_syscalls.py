# SPDX-License-Identifier: Apache-2.0
"""move_pages on this machine's kernel and one node; tests/vm/test_migrate.py tests two nodes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.migrate.syscalls import (
    move_pages,
    numa_maps,
    page_addresses,
    page_ranges,
    prefer_node,
    query_pages,
)

PAGE = mmap.PAGESIZE
PAGES = 64


@pytest.fixture
def region() -> Iterator[tuple[mmap.mmap, int]]:
    """A mapping whose even pages are touched."""
    with mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        held = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(held)
        del held
        for page in range(0, PAGES, 2):
            memory[page * PAGE] = 1
        yield memory, start


def test_query_tells_touched_from_untouched(region: tuple[mmap.mmap, int]) -> None:
    status = query_pages(os.getpid(), page_addresses(region[1], PAGES * PAGE), batch_pages=10)
    assert (status[::2] >= 0).all()
    assert (status[1::2] == -errno.ENOENT).all()


def test_query_of_unmapped_memory_is_a_fault() -> None:
    status = query_pages(0, np.array([PAGE], np.uint64))
    assert status.tolist() == [-errno.EFAULT]


def test_a_move_to_the_present_node_reports_it(region: tuple[mmap.mmap, int]) -> None:
    pages = page_addresses(region[1], PAGES * PAGE)
    node = int(query_pages(0, pages)[0])
    result = move_pages(0, pages, node, batch_pages=7)
    assert result.error == 0
    assert (result.status[::2] == node).all()
    assert (result.status[1::2] == -errno.ENOENT).all()


def test_a_move_of_no_pages_makes_no_call() -> None:
    assert len(move_pages(0, np.zeros(0, np.uint64), 0).status) == 0


def test_a_missing_node_is_an_error(region: tuple[mmap.mmap, int]) -> None:
    with pytest.raises(SentinelError, match="not online"):
        move_pages(0, page_addresses(region[1], PAGE), 1000)


def test_a_dead_process_raises() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessLookupError):
        query_pages(child.pid, np.array([PAGE], np.uint64))
    with pytest.raises(ProcessLookupError):
        move_pages(child.pid, np.array([PAGE], np.uint64), 0)
    with pytest.raises(ProcessLookupError):
        numa_maps(child.pid, [(0, 1 << 62)])


def test_numa_maps_counts_the_range_only(region: tuple[mmap.mmap, int]) -> None:
    prefer_node(region[1], PAGES * PAGE, 0)  # prevents a merge with an adjacent mapping
    counted = numa_maps(os.getpid(), [(region[1], PAGES * PAGE)])
    assert sum(counted.values()) == PAGES // 2


def test_names_in_numa_maps_cannot_forge_counts(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for end in ("\r", "\v", "\x1c", "\N{LINE SEPARATOR}"):
        line = f"1000 default file=/tmp/a{end}b{end}N1=9 mapped=3 N0=3 kernelpagesize_kB=4\n"
        (tmp_path / "7/numa_maps").write_bytes(line.encode())
        assert numa_maps(7, [(0, 1 << 62)], tmp_path) == {0: 3}


def test_adjacent_pages_become_one_range() -> None:
    addresses = np.array([7, 3, 4, 9, 8], np.uint64) * np.uint64(4096)
    assert page_ranges(addresses, 4096) == [(3 * 4096, 2 * 4096), (7 * 4096, 3 * 4096)]
    assert page_ranges(np.array([7, 3, 4, 9, 8]), 1) == [(3, 2), (7, 3)]
    assert page_ranges(np.zeros(0, np.int64), 1) == []
