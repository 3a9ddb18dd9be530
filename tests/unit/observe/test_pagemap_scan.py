# SPDX-License-Identifier: Apache-2.0
"""Written pages of this process's own memory, found by the kernel's asynchronous write protection.

tests/vm/test_backends.py checks the backend on another process.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_WRITE
from sentineld.observe import pagemap_scan
from sentineld.observe.backend import NO_NODE, Areas, Target, Watch
from sentineld.observe.pagemap_scan import PAGEMAP_SCAN
from sentineld.observe.writefds import WriteFds
from sentineld.shim.writes import SCAN, protect_writes

PAGE = 4096
PAGES = 64
PROBLEM = PAGEMAP_SCAN.probe()
works = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))


class Memory:
    """Pages of this process, and a watch that reports which of them are written."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.memory.madvise(mmap.MADV_NOHUGEPAGE)
        self.start = int(np.frombuffer(self.memory, np.uint8).ctypes.data)
        control_fd = protect_writes(self.start, PAGES * PAGE)
        pagemap_fd = os.open("/proc/self/pagemap", os.O_RDONLY)
        writes = WriteFds(SCAN, pagemap_fd, control_fd)
        self.watch: Watch = PAGEMAP_SCAN.open(Target(os.getpid(), writes=writes))

    def begin(self, first: int = 0, count: int = PAGES) -> None:
        self.watch.begin([(self.start + first * PAGE, count * PAGE)])

    def pages(self, areas: Areas) -> list[int]:
        """The areas' pages, as indices into the memory. The areas are ascending and disjoint."""
        found: list[int] = []
        for row in areas:
            first = (int(row["start"]) - self.start) // PAGE
            found += range(first, first + int(row["bytes"]) // PAGE)
        return found

    def close(self) -> None:
        self.watch.close()
        self.memory.close()


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


@works
@given(st.sets(st.integers(0, PAGES - 1)), st.sets(st.integers(0, PAGES - 1)))
@settings(max_examples=25)
def test_exactly_the_written_pages_are_reported(touched: set[int], written: set[int]) -> None:
    memory = Memory()
    for page in touched:
        memory.memory[page * PAGE] = 1
    memory.begin()
    for page in touched:
        assert memory.memory[page * PAGE] == 1
    for page in written:
        memory.memory[page * PAGE] = 2
    areas = memory.watch.end()
    assert memory.pages(areas) == sorted(written)
    assert set(areas["flags"].tolist()) <= {ACCESS_WRITE}
    assert set(areas["node"].tolist()) <= {NO_NODE}
    assert set(areas["heat"].tolist()) <= {1.0}
    memory.close()


@works
def test_each_window_begins_anew(memory: Memory) -> None:
    memory.begin()
    memory.memory[3 * PAGE] = 1
    assert memory.pages(memory.watch.end()) == [3]
    memory.begin()
    assert memory.pages(memory.watch.end()) == []
    memory.memory[4 * PAGE] = 1
    assert memory.pages(memory.watch.end()) == [4]


@works
def test_writes_outside_of_the_ranges_are_not_reported(memory: Memory) -> None:
    memory.begin(8, 4)
    memory.memory[7 * PAGE] = memory.memory[9 * PAGE] = memory.memory[12 * PAGE] = 1
    assert memory.pages(memory.watch.end()) == [9]


@works
def test_pages_that_were_only_read_are_not_written(memory: Memory) -> None:
    memory.begin()
    assert memory.memory[5 * PAGE] == 0  # maps the zero page
    memory.memory[6 * PAGE] = 1
    assert memory.pages(memory.watch.end()) == [6]


@works
def test_more_regions_than_one_scan_returns(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagemap_scan, "_REGIONS", 3)
    memory.begin()
    for page in range(0, PAGES, 2):
        memory.memory[page * PAGE] = 1
    assert memory.pages(memory.watch.end()) == list(range(0, PAGES, 2))


def test_a_kernel_without_it_is_reported_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(start: int, length_bytes: int) -> int:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(pagemap_scan, "protect_writes", refuse)
    error = PAGEMAP_SCAN.probe()
    assert isinstance(error, SentinelError)
    assert "Operation not permitted" in error.message
    assert "6.7" in error.hint
