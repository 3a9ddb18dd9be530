# SPDX-License-Identifier: Apache-2.0
"""Stray pages make room for others, and planned pages stay. A page is stray if it is in memory, but
not planned to be there. The pager searches for stray pages only if there are some."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.unit.shim.paged import PAGE, Paged, backing_file
from tests.unit.shim.pager.conftest import BUDGET, FILE_PAGES, PAGES, Link
from tests.unit.waiting import wait

PLANNED, STRAYS, FRAMES = 7000, 9000, 10000
"""Numbers of pages that are planned to be in memory, of pages that are planned to be in the file,
and of page frames. The planned pages leave more frames than the pager can fill by reading ahead for
two sequences of accesses. With fewer frames, the choice of the evicted pages would depend on the
speed of the pager's threads."""


def with_plan(start: Callable[..., Paged]) -> Paged:
    """PLANNED pages in memory, and behind them STRAYS pages in the file. All are filled with
    seed 1."""
    paged = start(PLANNED + STRAYS, FRAMES, file_pages=3 * FRAMES)
    paged.born(PLANNED, STRAYS)
    paged.fill(PLANNED, STRAYS, 1)
    assert paged.evict(PLANNED, STRAYS) == STRAYS
    paged.settle()
    paged.born(0, PLANNED)
    paged.fill(0, PLANNED, 1)
    paged.begin_stretch()
    return paged


def access(paged: Paged, first: int) -> None:
    """Access 50 pages, and then wait until the pager moves no page."""
    assert paged.holds(first, 50, 1)
    paged.settle()


def planned_in_memory(paged: Paged) -> bool:
    """Whether at least four fifths of the planned pages are in memory. Some may have been evicted:
    if all frames that hold no planned page belong to pages that are still being read, a fault finds
    no stray page to evict and evicts planned pages."""
    before = paged.counts().bytes_read
    assert paged.holds(0, PLANNED, 1)
    return paged.counts().bytes_read - before <= PLANNED // 5 * PAGE


def test_planned_pages_stay_while_other_pages_are_accessed(start: Callable[..., Paged]) -> None:
    """An operation on two tensors that are planned to be in the file."""
    paged = with_plan(start)
    for first in range(PLANNED, PLANNED + STRAYS // 2, 50):
        access(paged, first)
        access(paged, first + STRAYS // 2)
    assert paged.counts().bytes_read < 1.2 * STRAYS * PAGE
    assert planned_in_memory(paged)


def test_planned_pages_stay_if_each_stretch_accesses_the_same_other_pages(
    start: Callable[..., Paged],
) -> None:
    paged = with_plan(start)
    for _ in range(4):
        paged.begin_stretch()
        for first in range(PLANNED, PLANNED + STRAYS // 2, 50):
            access(paged, first)
    assert planned_in_memory(paged)


def test_planned_pages_stay_while_pages_are_born_that_are_planned_to_be_in_the_file(
    start: Callable[..., Paged],
) -> None:
    paged = start(PLANNED + STRAYS, FRAMES, file_pages=3 * FRAMES)
    paged.born_out(PLANNED, STRAYS)
    paged.born(0, PLANNED)
    paged.fill(0, PLANNED, 1)
    paged.born(PLANNED, STRAYS)
    for first in range(PLANNED, PLANNED + STRAYS, 50):
        paged.fill(first, 50, 1)
        paged.settle()
    assert planned_in_memory(paged)
    assert paged.counts().frames <= FRAMES
    assert paged.holds(PLANNED, STRAYS, 1)


def test_stray_pages_make_room_for_planned_fetches(start: Callable[..., Paged]) -> None:
    paged = with_plan(start)
    assert paged.evict(0, PLANNED) == PLANNED
    paged.settle()
    for first in range(PLANNED, PLANNED + STRAYS, 50):
        access(paged, first)
    wait(lambda: paged.fetch(0, PLANNED) == PLANNED)
    paged.settle()
    assert planned_in_memory(paged)


def test_stray_pages_are_counted_and_not_searched_in_vain(link: Link, tmp_path: Path) -> None:
    library = link("strays.c", "memchr")
    file = backing_file(tmp_path, FILE_PAGES)
    paged = Paged(library, file, FILE_PAGES, PAGES, BUDGET)

    def read_all() -> int:
        """Read all pages; there are three times as many as the budget. Returns the number of
        searches."""
        before = paged.counts().faults
        paged.ask("test_searches")
        assert all(paged.holds(first, 100, 1) for first in range(0, PAGES, 100))
        paged.settle()
        assert paged.counts().faults > before
        return paged.ask("test_searches")

    for first in range(0, PAGES, 100):
        paged.born(first, 100)
        paged.fill(first, 100, 1)
    # No page was ever passed to evict(), so all pages are planned to be in memory.
    assert read_all() == paged.ask("test_strays") == 0
    paged.evict(0, PAGES)
    paged.settle()
    assert paged.ask("test_strays") == 0
    assert paged.holds(0, 100, 1)
    assert paged.ask("test_strays") >= 100
    assert read_all() > 0
    random = Random(1)
    for _ in range(100):
        first, pages = random.randrange(PAGES - 100), random.randrange(1, 100)
        kind = random.choice(("evict", "fetch", "dropped", "born"))
        getattr(paged, kind)(first, pages)
        if kind in ("dropped", "born"):
            paged.born(first, pages)
            paged.fill(first, pages, 2)
        paged.words[random.randrange(PAGES)].sum()
        assert paged.ask("test_strays") >= 0
    paged.settle()
    paged.stop()
    os.close(file)
