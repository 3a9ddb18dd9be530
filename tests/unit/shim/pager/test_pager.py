# SPDX-License-Identifier: Apache-2.0
"""The pager stays within its budget and preserves the content of every page."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.shim.paged import PAGE, Paged, backing_file
from tests.unit.shim.pager.conftest import BLOCK_PAGES, BUDGET, FILE_PAGES, PAGES


def test_the_budget_is_kept(start: Callable[..., Paged]) -> None:
    paged = start()
    for seed in (1, 2):
        for first in range(0, PAGES, 100):
            paged.born(first, 100)
            paged.fill(first, 100, seed)
            assert paged.counts().frames <= BUDGET
    for first in range(0, PAGES, 100):
        assert paged.holds(first, 100, 2)
        assert paged.counts().frames <= BUDGET
    counts = paged.counts()
    assert counts.faults > 0
    assert counts.overruns == counts.write_error == 0
    assert counts.bytes_written >= (PAGES - BUDGET) * PAGE


def test_moves_may_reach_beyond_the_pages_that_were_ever_born(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    assert paged.evict(600, PAGES - 600) == 0
    assert paged.evict(200, PAGES - 200) == 100
    paged.settle()
    assert paged.fetch(600, PAGES - 600) == PAGES - 600
    assert paged.fetch(250, PAGES - 250) == PAGES - 250
    paged.settle()
    assert paged.holds(0, 300, 1)
    assert paged.counts().faults > 0
    paged.born(300, 10)  # directly above the highest page that has ever been born
    paged.fill(300, 10, 1)
    assert paged.evict(300, PAGES - 300) == 10
    paged.settle()
    assert paged.holds(300, 10, 1)


def test_unchanged_pages_are_not_written_again(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.evict(0, 300)
    paged.settle()
    assert paged.holds(0, 300, 1)
    paged.words[7, 3] += 1
    written = paged.counts().bytes_written
    assert paged.evict(0, 300) == 300
    paged.settle()
    counts = paged.counts()
    assert (counts.bytes_written - written, counts.clean_pages) == (PAGE, 299)
    paged.words[7, 3] -= 1
    assert paged.holds(0, 300, 1)


def test_dropped_pages_are_neither_written_nor_read(start: Callable[..., Paged]) -> None:
    paged = start()
    for seed in range(1, 20):
        paged.born(0, BUDGET)
        paged.fill(0, BUDGET, seed)
        paged.dropped(0, BUDGET)
    counts = paged.counts()
    assert counts.bytes_written == counts.bytes_read == counts.waits == 0


def test_pages_are_fetched_before_their_use(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.evict(0, 300)
    paged.settle()
    paged.fetch(0, 300)
    paged.settle()
    assert paged.holds(0, 300, 1)
    assert paged.counts().faults == 0


def test_a_smaller_budget_evicts_pages(start: Callable[..., Paged]) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    paged.set_budget(BUDGET // 4)
    paged.settle()
    assert paged.counts().frames <= BUDGET // 4
    assert paged.holds(0, BUDGET, 1)


def test_pages_accessed_while_they_are_evicted_stay_within_the_budget(
    start: Callable[..., Paged],
) -> None:
    paged = start()
    paged.born(0, BUDGET)
    paged.fill(0, BUDGET, 1)
    for _ in range(20):
        paged.evict(0, BUDGET)
        for page in reversed(range(BUDGET)):
            assert paged.holds(page, 1, 1)
            assert paged.counts().frames <= BUDGET
    assert paged.counts().overruns == 0


def test_pages_used_before_the_pager_starts_are_kept(library: ctypes.CDLL, tmp_path: Path) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, BUDGET, used=10)
    assert paged.holds(0, 10, 1)
    assert paged.evict(0, 10) == 10
    paged.settle()
    assert paged.holds(0, 10, 1)
    assert paged.counts().births_by_fault == 0
    paged.stop()
    os.close(file)


def test_pages_born_by_accesses_stay_when_the_pager_stops(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, BUDGET)
    # An access to an absent page is a birth.
    paged.fill(0, 10, 1)
    assert paged.counts().births_by_fault == 10
    assert paged.holds(0, 10, 1)
    paged.stop()
    assert paged.holds(0, 10, 1)
    os.close(file)


def test_pages_that_the_program_drops_itself_read_as_zeros(start: Callable[..., Paged]) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.born(0, 100)
    paged.fill(0, 100, 1)
    paged.dropped(50, 50)  # frees frames that still have their old content
    paged.discard(10, 20)
    assert not paged.words[10:20].any()
    assert paged.evict(0, 50) == 40  # pages 20 to 29 are absent: discarded, and not read since
    paged.settle()
    assert not paged.words[20:30].any()
    assert paged.holds(0, 10, 1)
    assert paged.holds(30, 20, 1)


def test_pages_that_the_program_drops_itself(start: Callable[..., Paged]) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.born(0, 100)
    paged.fill(0, 100, 1)
    paged.discard(10, 20)
    paged.fill(10, 5, 2)  # The pager still regards the discarded pages as present.
    assert paged.evict(0, 100) == 85
    paged.settle()
    paged.fill(15, 15, 2)
    assert paged.holds(0, 10, 1)
    assert paged.holds(10, 20, 2)
    assert paged.holds(30, 70, 1)
    assert paged.counts().births_by_fault == 20
    assert paged.counts().frames <= 2 * BLOCK_PAGES


def test_pages_of_a_divided_mapping_move_as_before(start: Callable[..., Paged]) -> None:
    """The kernel divides a mapping if a program gives advice for a part of it."""
    paged = start(budget=2 * BLOCK_PAGES)
    paged.advise(mmap.MADV_DONTFORK, 101, 99)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    for seed in (1, 2):
        assert paged.evict(0, 300) == 300
        paged.settle()
        assert paged.fetch(0, 300) == 300
        paged.settle()
        assert paged.holds(0, 300, seed)
        paged.dropped(0, 300)
        paged.born(0, 300)
        paged.fill(0, 300, seed + 1)
    assert paged.holds(0, 300, 3)
    assert paged.counts().faults == paged.counts().births_by_fault == 0
    assert paged.counts().frames <= 2 * BLOCK_PAGES


LOCKED = 10  # pages; RLIMIT_MEMLOCK may be small


def test_pages_that_the_program_locks_stay(start: Callable[..., Paged]) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.lock(101, LOCKED)
    assert paged.evict(0, 300) == 300 - LOCKED
    paged.settle()
    assert paged.holds(0, 300, 1)
    assert paged.evict(0, 300) == 300 - LOCKED
    paged.settle()
    assert paged.fetch(0, 300) == 300
    paged.settle()
    assert paged.holds(0, 300, 1)


@pytest.mark.parametrize("moves", [Paged.fetch, lambda *_: None])
def test_pages_that_are_out_arrive_when_the_program_locks_them(
    start: Callable[..., Paged], moves: Callable[[Paged, int, int], object]
) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.fill_and_evict(300)
    paged.lock(101, LOCKED)
    moves(paged, 0, 300)
    paged.settle()
    assert paged.holds(0, 300, 1)
    assert paged.counts().frames <= 2 * BLOCK_PAGES


def test_locked_pages_can_be_dropped_and_born_again(start: Callable[..., Paged]) -> None:
    paged = start(budget=2 * BLOCK_PAGES)
    paged.born(0, 300)
    paged.fill(0, 300, 1)
    paged.lock(101, LOCKED)
    for seed in (2, 3):
        paged.dropped(50, 200)
        paged.born(50, 200)
        paged.fill(50, 200, seed)
        assert paged.counts().frames <= 2 * BLOCK_PAGES
    assert paged.holds(0, 50, 1)
    assert paged.holds(50, 200, 3)
    assert paged.holds(250, 50, 1)
    paged.dropped(101, LOCKED)
    assert not paged.words[101 : 101 + LOCKED].any()  # the accesses are births of zeroed pages
    assert paged.counts().births_by_fault == LOCKED


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("born", "born", "born and filled", "dropped"),
                *("evict", "fetch", "fill", "fill", "check", "settle"),
            )
        ),
        st.integers(0, PAGES - 1),
        st.integers(1, 500),
    ),
    min_size=1,
    max_size=60,
)


ABSENT, UNFILLED = -1, 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(operations=OPERATIONS, budget=st.integers(40, 2 * PAGES))
def test_any_sequence_keeps_the_content(
    library: ctypes.CDLL, tmp_path: Path, operations: list[tuple[str, int, int]], budget: int
) -> None:
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, budget)
    seeds = [ABSENT] * PAGES
    for number, (operation, first, count) in enumerate(operations, 1):
        last = min(first + count, PAGES)
        if operation in ("born", "born and filled"):
            paged.born(first, last - first)
        elif operation in ("dropped", "evict", "fetch"):
            getattr(paged, operation)(first, last - first)
        elif operation == "settle":
            paged.settle()
            assert paged.counts().frames <= budget
        if operation == "dropped":
            seeds[first:last] = [ABSENT] * (last - first)
        for page in range(first, last):
            if operation == "born":
                seeds[page] = max(seeds[page], UNFILLED)
            elif operation == "born and filled" or (operation == "fill" and seeds[page] != ABSENT):
                paged.fill(page, 1, number)
                seeds[page] = number
            elif operation == "check" and seeds[page] > UNFILLED:
                assert paged.holds(page, 1, seeds[page])
    for page, seed in enumerate(seeds):
        assert seed <= UNFILLED or paged.holds(page, 1, seed)
    assert paged.counts().overruns == 0
    paged.stop()
    for page, seed in enumerate(seeds):
        assert seed <= UNFILLED or paged.holds(page, 1, seed)
    os.close(file)
