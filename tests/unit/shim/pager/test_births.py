# SPDX-License-Identifier: Apache-2.0
"""A born page immediately gets a free frame. If no frame is free, the page gets a frame that is
freed later, at the latest when the page is accessed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from tests.unit.shim.paged import PAGE, PATIENCE_S, Paged
from tests.unit.shim.pager.conftest import BUDGET, PAGES


def test_a_birth_does_not_wait_for_frames(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.born(BUDGET, 200)
    paged.settle()
    assert paged.counts().bytes_written == 0
    paged.evict(0, 200)
    paged.settle()
    # The born pages already have the frames of evicted pages, so no access waits for a frame.
    paged.fill(BUDGET, 200, 2)
    assert paged.counts().births_by_fault == paged.counts().waits == 0
    assert paged.holds(0, BUDGET, 1)
    assert paged.holds(BUDGET, 200, 2)


def test_born_pages_without_frames_get_some_when_they_are_accessed(
    start: Callable[..., Paged],
) -> None:
    paged = start()
    paged.born(0, PAGES)
    for first in range(0, PAGES, 100):
        paged.fill(first, 100, 1)
        assert paged.counts().frames <= BUDGET
    # When a page without a frame is accessed, this page and the pages behind it get all frames that
    # eviction has freed. On a busy machine, few frames are free at each access, so there are more
    # faults. But if only the accessed page got a frame, each of the 800 pages beyond the budget
    # would cause a fault.
    assert 0 < paged.counts().births_by_fault < 100
    assert paged.holds(0, PAGES, 1)


def test_evicted_pages_get_no_frames_before_they_are_accessed(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.born(BUDGET, 200)
    paged.evict(BUDGET + 100, 100)
    paged.evict(0, 300)
    paged.settle()
    paged.fill(BUDGET, 100, 2)
    assert paged.counts().births_by_fault == 0
    paged.fill(BUDGET + 100, 100, 2)
    assert paged.counts().births_by_fault == 1
    assert paged.holds(BUDGET, 200, 2)


def test_frames_go_to_an_accessed_page_before_a_birth(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.born(BUDGET, BUDGET)
    paged.born(2 * BUDGET, 1)
    paged.fill(2 * BUDGET, 1, 2)
    assert paged.counts().bytes_written == PAGE
    assert paged.holds(2 * BUDGET, 1, 2)


def test_born_pages_may_be_dropped_before_they_have_frames(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.born(BUDGET, BUDGET)
    paged.dropped(BUDGET, BUDGET)
    paged.dropped(0, BUDGET)
    paged.settle()
    paged.fill(2 * BUDGET, 1, 1)
    # No frames are kept for the dropped pages.
    assert paged.evict(2 * BUDGET, 1) == 1
    paged.settle()
    assert paged.fetch(2 * BUDGET, 1) == 1


def test_a_page_can_be_accessed_that_is_evicted_as_soon_as_it_is_born(
    start: Callable[..., Paged],
) -> None:
    """A fault on a page that is planned to be in the file also gives frames to the pages behind it.
    To make room for the next ones, it evicts the first of these pages again."""
    first, pages, budget = 300, 900, 556
    paged = start(first + pages, budget, file_pages=3 * (first + pages))
    paged.born(0, first)
    paged.fill(0, first, 1)
    paged.born_out(first, pages)
    paged.born(first, pages)

    def access(page: int) -> None:
        address = ctypes.c_void_p(paged.words[page].ctypes.data)
        ctypes.CDLL(None).memset(address, 1, ctypes.c_size_t(8))

    def run() -> None:
        access(first)
        paged.settle()
        for page in range(first, first + pages):
            access(page)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    ended = not thread.is_alive()
    paged.dropped(first, pages)  # wakes the thread if it still waits
    assert ended
