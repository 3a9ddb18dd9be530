# SPDX-License-Identifier: Apache-2.0
"""Moves on paged tiers become ranges in the pager's queues."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from sentineld.migrate.paged import QUEUED_RANGES_MAX, PagedMemory
from sentineld.migrate.syscalls import page_addresses
from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.observe.paging_segment import PagingSegment

PAGE = 4096
ARENA, HEAP = 1 << 40, 1 << 41
PAGES = 64
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 40)), 1e9, "paged", paged=True)


@dataclass
class Segment:
    """The maps of a residency segment: 0 absent, 1 in memory, 2 in the file."""

    maps: dict[Space, npt.NDArray[np.uint8]] = field(
        default_factory=lambda: {space: np.zeros(PAGES, np.uint8) for space in Space}
    )


@pytest.fixture
def wake_fd() -> Iterator[int]:
    descriptor = os.eventfd(0, os.EFD_NONBLOCK)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def words() -> npt.NDArray[np.void]:
    return np.zeros(1, protocol.PAGING_DTYPE)


@pytest.fixture
def segment() -> Segment:
    return Segment()


@pytest.fixture
def memory(segment: Segment, words: npt.NDArray[np.void], wake_fd: int) -> Iterator[PagedMemory]:
    spaces = {Space.ARENA: (ARENA, PAGES * PAGE), Space.HEAP: (HEAP, PAGES * PAGE)}
    paging = PagingSegment(words)
    made = PagedMemory(
        cast(Any, segment), paging, spaces, TIERS, wake_fd, PAGE, sleep=lambda _: None
    )
    yield made
    made.close()


def queued(words: npt.NDArray[np.void], queue: str) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = words[queue]["ranges"][
        0, : int(words[queue]["head"][0])
    ].tolist()
    return found


def test_a_page_is_absent_in_memory_or_in_the_file(memory: PagedMemory, segment: Segment) -> None:
    segment.maps[Space.HEAP][:3] = 0, 1, 2
    assert memory.query_pages(page_addresses(HEAP, 3 * PAGE, PAGE)).tolist() == [
        -errno.ENOENT,
        0,
        1,
    ]


def test_runs_of_resident_pages_are_queued(
    memory: PagedMemory, segment: Segment, words: npt.NDArray[np.void], wake_fd: int
) -> None:
    segment.maps[Space.ARENA][[1, 2, 3, 8]] = 1
    segment.maps[Space.HEAP][5] = 1
    pages = np.concatenate(
        [page_addresses(ARENA, 10 * PAGE, PAGE), page_addresses(HEAP + 5 * PAGE, PAGE, PAGE)]
    )
    status = memory.move_pages(pages, 1).status
    assert queued(words, "evict") == [(1, 3, 0), (8, 1, 0), (5, 1, 1)]
    assert os.eventfd_read(wake_fd) > 0
    gone = -errno.ENOENT
    assert status.tolist() == [gone, 1, 1, 1, gone, gone, gone, gone, 1, gone, 1]


def test_a_pager_whose_eventfd_is_full_is_being_woken_already(
    memory: PagedMemory, segment: Segment, words: npt.NDArray[np.void], wake_fd: int
) -> None:
    os.eventfd_write(wake_fd, (1 << 64) - 2)  # the largest count
    segment.maps[Space.HEAP][:4] = 1
    assert memory.move_pages(page_addresses(HEAP, 4 * PAGE, PAGE), 1).status.tolist() == [1] * 4
    assert queued(words, "evict") == [(0, 4, 1)]
    # Now the queue is full: move_pages() waits for room, and meanwhile wakes the pager repeatedly.
    words["evict"]["head"] = protocol.QUEUE_RANGES
    status = memory.move_pages(page_addresses(HEAP, 4 * PAGE, PAGE), 1).status
    assert status.tolist() == [-errno.EBUSY] * 4


def test_promotions_are_queued_apart(
    memory: PagedMemory, segment: Segment, words: npt.NDArray[np.void]
) -> None:
    segment.maps[Space.HEAP][:4] = 2
    assert memory.move_pages(page_addresses(HEAP, 4 * PAGE, PAGE), 0).status.tolist() == [0] * 4
    assert queued(words, "evict") == []
    assert queued(words, "fetch") == [(0, 4, 1)]


def test_the_fast_tier_has_no_room_while_many_fetches_wait(
    memory: PagedMemory, words: npt.NDArray[np.void]
) -> None:
    assert memory.best_node(0) == (0, 1 << 30)
    words["fetch"]["head"] = QUEUED_RANGES_MAX
    assert memory.best_node(0) == (0, 0)
    assert memory.best_node(1) == (1, 1 << 40)
    words["fetch"]["tail"] = 1
    assert memory.best_node(0) == (0, 1 << 30)


def test_pages_stay_if_the_pager_does_not_empty_its_queue(
    memory: PagedMemory, segment: Segment, words: npt.NDArray[np.void]
) -> None:
    """The queue is nearly full, because the pager of a stopped process does not empty it."""
    segment.maps[Space.HEAP][:4] = 1
    words["evict"]["head"] = protocol.QUEUE_RANGES - 1
    pages = page_addresses(HEAP, 4 * PAGE, PAGE)[[0, 2]]
    assert memory.move_pages(pages, 1).status.tolist() == [1, -errno.EBUSY]


def test_pages_outside_a_shrunken_map_are_absent(memory: PagedMemory, segment: Segment) -> None:
    """When the session ends, the segment is closed, and its maps become empty."""
    segment.maps = {space: np.zeros(0, np.uint8) for space in Space}
    pages = page_addresses(HEAP, 2 * PAGE, PAGE)
    assert memory.query_pages(pages).tolist() == [-errno.ENOENT] * 2
    assert memory.move_pages(pages, 0).status.tolist() == [-errno.ENOENT] * 2


def test_only_the_arena_and_the_used_heap_are_read(
    words: npt.NDArray[np.void], wake_fd: int
) -> None:
    """The process chooses the lengths of the maps."""
    long = np.ones(64 << 20, np.uint8)
    maps = Segment({Space.ARENA: long, Space.HEAP: long})
    spaces = {Space.ARENA: (ARENA, 3 * PAGE), Space.HEAP: (HEAP, 2 * PAGE)}
    used = 0
    memory = PagedMemory(
        cast(Any, maps),
        PagingSegment(words),
        spaces,
        TIERS,
        wake_fd,
        PAGE,
        heap_bytes=lambda: used,
    )
    tracemalloc.start()
    try:
        assert memory.bytes_by_tier() == [5 * PAGE, 0]
        assert [len(tiers) for tiers in memory.page_tiers().values()] == [3, 2]
        used = 4 * PAGE  # the heap grows
        assert memory.bytes_by_tier() == [7 * PAGE, 0]
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
        memory.close()
