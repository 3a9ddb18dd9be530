# SPDX-License-Identifier: Apache-2.0
"""The fast memory that is charged in a step of four stretches, with eight arena pages.

Several tests use BIRTHS and DROPS:
pages 0-3   born on the fast tier in stretch 1, dropped in stretch 2
pages 4-7   born on the fast tier in stretch 2, kept
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.charge import Charge
from sentineld.migrate.pending import no_pages
from sentineld.migrate.process_memory import Memory
from sentineld.migrate.residency_map import ABSENT, PageMaps
from sentineld.migrate.syscalls import Addresses, Status
from sentineld.model.plan import Space
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.expected import BIRTH_DTYPE, DROP_DTYPE, EVENT_DTYPE, ExpectedStep
from sentineld.plan.residency import ABSENT as NO_TIER
from tests.unit.waiting import PATIENCE_S

PAGE = 4096
TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 30)), 1e8, "config")


def make(
    births: list[tuple[int, int, bool, int, int]],
    drops: list[tuple[int, int, int]],
    budget_pages: int,
    overhead_bytes: int = 0,
    order: list[tuple[int, bool, int, int, int]] | None = None,
    waits: tuple[int, int, int, int] = (-1, -1, -1, -1),
    heap_pages: tuple[int, int, int, int] = (0, 0, 0, 0),
) -> Charge:
    """The charge of a step with these births and drops.

    births: (stretch, tier, whether the tensor outlives the stretch, first page, pages).
    drops: (stretch, first page, pages).
    order: the births and drops in the order in which they happen, as (stretch, whether it is a
        birth, tier, first page, pages). None: in each stretch, the births come before the drops.
    """
    if order is None:
        order = [(s, True, t, o, n) for s, t, _, o, n in births]
        order += [(s, False, 0, o, n) for s, o, n in drops]
    step = ExpectedStep(
        np.array([(s, t, v, o * PAGE, n * PAGE) for s, t, v, o, n in births], BIRTH_DTYPE),
        np.array([(s, o * PAGE, n * PAGE) for s, o, n in drops], DROP_DTYPE),
        np.array([(s, b, t, o * PAGE, n * PAGE) for s, b, t, o, n in order], EVENT_DTYPE),
        np.array(heap_pages) * PAGE,
    )
    spaces = PageMaps(TIERS, {Space.ARENA: (1 << 30, 8 * PAGE), Space.HEAP: (1 << 32, 8 * PAGE)})
    asked = np.array(waits, np.int32)
    return Charge(spaces, step, asked, budget_pages * PAGE, lambda: overhead_bytes)


def page_tiers(charge: Charge, barriers_hold: bool = True) -> tuple[int, list[int]]:
    """The stretch, and the tier of each arena page. Checks that no heap page has a tier."""
    found = charge.page_tiers(barriers_hold)
    assert set(found.tiers[Space.HEAP].tolist()) == {NO_TIER}
    return found.stretch, found.tiers[Space.ARENA].tolist()


BIRTHS = [(1, 0, True, 0, 4), (2, 0, True, 4, 4)]
DROPS = [(2, 0, 4)]


def test_births_count_from_the_begin_of_their_stretch_and_drops_from_its_end() -> None:
    charge = make(BIRTHS, DROPS, 100, overhead_bytes=PAGE)
    assert charge.charged_bytes() == PAGE
    charge.begin(1)
    assert charge.charged_bytes() == 5 * PAGE
    charge.end()
    charge.begin(2)
    assert charge.charged_bytes() == 9 * PAGE
    assert charge.end()["offset"].tolist() == [0]
    assert charge.charged_bytes() == 5 * PAGE


def test_births_behind_a_barrier_are_charged_when_it_opens() -> None:
    charge = make(BIRTHS, DROPS, 100, waits=(-1, -1, 1, -1), heap_pages=(0, 1, 2, 0))
    second_step = 4
    charge.begin(second_step + 1)
    charge.end()
    charge.begin(second_step + 2)
    charge.done = second_step
    assert charge.charged_bytes() == (4 + 1) * PAGE
    assert charge.resident_bytes() == [4 * PAGE, 0]
    assert page_tiers(charge) == (2, [0] * 4 + [NO_TIER] * 4)
    assert charge.charged_bytes(barriers_hold=False) == (8 + 2) * PAGE
    assert charge.resident_bytes(barriers_hold=False) == [8 * PAGE, 0]
    assert page_tiers(charge, barriers_hold=False) == (2, [0] * 8)
    charge.done = second_step + 1
    assert charge.charged_bytes() == (8 + 2) * PAGE
    charge.end()
    charge.begin(second_step + 3)
    assert charge.charged_bytes() == 4 * PAGE
    assert charge.resident_bytes() == [4 * PAGE, 0]


def test_a_barrier_may_wait_for_the_step_before() -> None:
    charge = make([(0, 0, True, 0, 4)], [], 100, waits=(3, -1, -1, -1), heap_pages=(2, 0, 0, 1))
    charge.begin(8)
    charge.done = 6
    assert charge.charged_bytes() == 1 * PAGE
    charge.done = 7
    assert charge.charged_bytes() == (4 + 2) * PAGE


def test_births_behind_a_closed_barrier_reserve_room() -> None:
    charge = make([(0, 0, True, 0, 4)], [], budget_pages=5, waits=(3, -1, -1, -1))
    charge.begin(8)
    assert charge.room_bytes() == PAGE


def test_room_excludes_the_births_of_the_next_stretch() -> None:
    charge = make(BIRTHS, DROPS, budget_pages=9)
    charge.begin(0)
    assert charge.room_bytes() == 5 * PAGE  # budget 9 - 4 births in stretch 1
    charge.begin(1)
    assert charge.room_bytes() == 1 * PAGE  # budget 9 - 4 resident - 4 births in stretch 2


def test_room_includes_the_drops_of_this_stretch() -> None:
    charge = make([(0, 0, True, 0, 4), (1, 0, True, 4, 4)], [(0, 0, 4)], budget_pages=5)
    charge.begin(0)
    # Budget 5 - 4 births in stretch 0 = 1. The drops in stretch 0 make room for the births in
    # stretch 1.
    assert charge.room_bytes() == 1 * PAGE


def test_pages_dropped_and_reborn_stay_charged() -> None:
    charge = make([(0, 0, False, 0, 4), (0, 0, True, 0, 2)], [(0, 0, 4)], budget_pages=8)
    charge.begin(0)
    charge.end()
    arena = charge.spaces.maps[Space.ARENA]
    assert arena.nodes[:4].tolist() == [0, 0, ABSENT, ABSENT]


def test_pages_reborn_in_the_next_stretch_make_no_room() -> None:
    charge = make([(0, 0, False, 0, 4), (1, 0, True, 0, 4)], [(0, 0, 4)], budget_pages=6)
    charge.begin(0)
    assert charge.room_bytes() == 2 * PAGE


def test_unfinished_demotions_make_no_room() -> None:
    charge = make([(1, 0, True, 0, 4)], [], budget_pages=8)
    charge.spaces.maps[Space.HEAP].apply(np.arange(3), np.zeros(3, np.int32))
    charge.begin(0)
    assert charge.room_bytes() == 1 * PAGE  # budget 8 - 3 pages not demoted yet - 4 births
    charge.moved(Space.HEAP, np.arange(3), np.full(3, 1, np.int32))
    assert charge.room_bytes() == 4 * PAGE


def test_slow_births_are_free_and_first_touch_births_are_charged() -> None:
    charge = make([(1, 1, True, 0, 4), (1, 255, True, 4, 1)], [], budget_pages=8)
    charge.begin(1)
    assert charge.charged_bytes() == PAGE


def test_a_death_makes_room_for_a_later_birth_of_the_stretch() -> None:
    births, drops = [(0, 0, False, 0, 4), (0, 0, True, 4, 4)], [(0, 0, 4)]
    order = [(0, True, 0, 0, 4), (0, False, 0, 0, 4), (0, True, 0, 4, 4)]
    charge = make(births, drops, budget_pages=6, order=order)
    charge.begin(0)
    assert charge.charged_bytes() == 4 * PAGE
    assert charge.room_bytes() == 2 * PAGE
    together = make(births, drops, budget_pages=9)
    together.begin(0)
    assert together.charged_bytes() == 8 * PAGE
    assert together.room_bytes() == 1 * PAGE


def test_a_moved_birth_is_charged_on_its_present_tier() -> None:
    charge = make([(0, 1, True, 0, 4)], [], budget_pages=8)
    arena = charge.spaces.maps[Space.ARENA]
    charge.begin(0)
    assert charge.charged_bytes() == 0
    arena.apply(np.arange(2), np.zeros(2, np.int32))
    assert charge.charged_bytes() == 2 * PAGE
    assert charge.room_bytes() == 6 * PAGE


def test_a_birth_counts_in_the_peak_after_its_demotion() -> None:
    charge = make([(0, 0, True, 0, 4)], [], 100)
    charge.begin(0)
    assert charge.charged_bytes() == 4 * PAGE
    charge.moved(Space.ARENA, np.array([0, 1]), np.array([1, 1], np.int32))
    assert charge.charged_bytes() == 4 * PAGE
    charge.end()
    charge.begin(1)
    assert charge.charged_bytes() == 2 * PAGE


class WithoutPageFive:
    """Pages on the fast node, except page 5 of the arena, which is absent."""

    def query_pages(self, pages: Addresses) -> Status:
        absent = pages == (1 << 30) + 5 * PAGE
        return np.where(absent, -errno.ENOENT, 0).astype(np.int32)


@pytest.mark.parametrize("found_by", ["refresh", "recheck", "moved"])
def test_a_page_that_is_found_absent_is_born_again(found_by: str) -> None:
    """The page is born in stretch 2 and never dropped."""
    charge, memory, page = make(BIRTHS, DROPS, 100), cast(Memory, WithoutPageFive()), np.array([5])
    nodes = charge.spaces.maps[Space.ARENA].nodes
    charge.begin(0)
    for now in range(1, 9):
        charge.end()
        charge.begin(now)
    assert nodes[5] == 0
    match found_by:
        case "refresh":
            charge.refresh(memory, 8)
        case "recheck":
            charge.recheck(memory, page, 8)
        case "moved":
            charge.moved(Space.ARENA, page, np.array([-errno.ENOENT], np.int32))
    assert nodes[5] == ABSENT
    for now in (9, 10):
        charge.end()
        charge.begin(now)
    assert nodes[5] == 0


def test_a_recheck_of_one_page_keeps_the_peak_of_the_others() -> None:
    charge = make([(0, 0, True, 0, 4)], [], 100)
    charge.begin(0)
    charge.moved(Space.ARENA, np.array([0, 1]), np.array([1, 1], np.int32))
    charge.recheck(cast(Memory, WithoutPageFive()), np.array([3]), 0)
    assert charge.charged_bytes() == 4 * PAGE


class LockedMemory:
    """The pages of a process that keeps its address space locked: queries wait until it is
    unlocked. All pages are on the fast node."""

    def __init__(self) -> None:
        self.asked, self.unlocked = threading.Event(), threading.Event()

    def query_pages(self, pages: Addresses) -> Status:
        self.asked.set()
        assert self.unlocked.wait(PATIENCE_S)
        return np.zeros(len(pages), np.int32)


@contextmanager
def while_locked(query: Callable[[Memory], object]) -> Iterator[None]:
    """Run a query of locked memory in another thread; the `with` block runs while it waits."""
    memory = LockedMemory()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(query, cast(Memory, memory))
        try:
            assert memory.asked.wait(PATIENCE_S)
            yield
        finally:
            memory.unlocked.set()
        done.result()


def results(charge: Charge) -> tuple[int, list[int], list[int]]:
    """The charge's figures, read in another thread. Fails if that thread waits for PATIENCE_S."""
    with ThreadPoolExecutor(1) as pool:
        fast_bytes = pool.submit(charge.charged_bytes)
        by_tier = pool.submit(charge.resident_bytes)
        tiers = pool.submit(lambda: page_tiers(charge)[1])
        return (
            fast_bytes.result(PATIENCE_S),
            by_tier.result(PATIENCE_S),
            tiers.result(PATIENCE_S),
        )


def test_a_locked_process_delays_the_refresh_but_not_the_results() -> None:
    charge = make(BIRTHS, DROPS, 100)
    charge.begin(1)
    before = (4 * PAGE, [4 * PAGE, 0], [0] * 4 + [NO_TIER] * 4)
    with while_locked(lambda memory: charge.refresh(memory, 1)):
        assert (results(charge), charge.residency_known) == (before, False)
    # All pages of the arena and the heap turn out to be resident.
    assert (charge.charged_bytes(), charge.residency_known) == (16 * PAGE, True)
    assert charge.resident_bytes() == [16 * PAGE, 0]


def test_a_locked_process_delays_the_recheck_but_not_the_results() -> None:
    charge = make(BIRTHS, DROPS, 100)
    charge.begin(1)
    before = (4 * PAGE, [4 * PAGE, 0], [0] * 4 + [NO_TIER] * 4)
    with while_locked(lambda memory: charge.recheck(memory, np.array([5, 6]), 1)):
        assert results(charge) == before
    assert charge.resident_bytes() == [6 * PAGE, 0]


STRETCHES = 2
EVENTS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.integers(0, 3), st.integers(1, 4)), max_size=8
)
STEP_EVENTS = st.lists(EVENTS, min_size=STRETCHES, max_size=STRETCHES)
REGION_TIERS = st.tuples(st.integers(0, 1), st.integers(0, 1))
MOVES = st.lists(
    st.tuples(st.sampled_from(Space), st.integers(0, 7), st.sampled_from([0, 1, -errno.ENOENT])),
    max_size=8,
)


def ordered(
    events: list[list[tuple[bool, int, int, int]]], tiers: tuple[int, int]
) -> list[tuple[int, bool, int, int, int]]:
    """The births and drops, as for make(). The arena has two regions of four pages.

    events: for each stretch (whether it is a birth, region, first page in the region, pages).
    tiers: the tier of each region.
    """
    return [
        (stretch, birth, tiers[region], 4 * region + first, min(count, 4 - first))
        for stretch in range(STRETCHES)
        for birth, region, first, count in events[stretch]
    ]


def make_ordered(order: list[tuple[int, bool, int, int, int]], budget_pages: int) -> Charge:
    """The charge of a step with these births and drops."""
    births = [(s, t, False, o, n) for s, b, t, o, n in order if b]
    drops = [(s, o, n) for s, b, _, o, n in order if not b]
    return make(births, drops, budget_pages, order=order)


@given(
    STEP_EVENTS,
    REGION_TIERS,
    st.integers(0, 12),
    MOVES,
    st.integers(0, 12),
)
def test_room_is_the_budget_less_the_peak(
    events: list[list[tuple[bool, int, int, int]]],
    tiers: tuple[int, int],
    budget_pages: int,
    moves: list[tuple[Space, int, int]],
    wanted_pages: int,
) -> None:
    """Compare the charge and the room with a model that replays the events one at a time."""
    order = ordered(events, tiers)
    charge = make_ordered(order, budget_pages)
    pages: dict[int, int] = {}
    fullest = []
    for stretch in range(STRETCHES):
        counts = [sum(tier == 0 for tier in pages.values())]
        for _, birth, tier, first, count in (e for e in order if e[0] == stretch):
            for page in range(first, first + count):
                if birth:
                    pages.setdefault(page, tier)
                else:
                    pages.pop(page, None)
            counts.append(sum(tier == 0 for tier in pages.values()))
        fullest.append(max(counts))
    charge.begin(0)
    assert charge.charged_bytes() == fullest[0] * PAGE
    assert charge.room_bytes() == max(budget_pages - max(fullest), 0) * PAGE
    # Compare the room after each move with the room that a new charge computes from all pages.
    wanted_bytes = wanted_pages * PAGE
    for space, page, status in moves:
        if charge.spaces.maps[space].nodes[page] == ABSENT:
            status = -errno.ENOENT
        charge.moved(space, np.array([page]), np.array([status], np.int32))
        bound_bytes = charge.room_bytes(wanted_bytes)
        other = make_ordered(order, budget_pages)
        other.begin(0)
        for name, residency in charge.spaces.maps.items():
            copied = other.spaces.maps[name]
            status = np.where(residency.nodes == ABSENT, -errno.ENOENT, residency.nodes)
            copied.apply(np.arange(len(status)), status.astype(np.int32))
            assert copied.fast_pages == residency.fast_pages
        assert min(other.room_bytes(), wanted_bytes) <= bound_bytes <= other.room_bytes()
        if wanted_pages % 2:
            assert charge.room_bytes() == other.room_bytes()


@given(STEP_EVENTS, REGION_TIERS, st.lists(MOVES, min_size=2 * STRETCHES, max_size=2 * STRETCHES))
def test_the_charge_is_the_same_when_computed_from_the_births_and_drops(
    events: list[list[tuple[bool, int, int, int]]],
    tiers: tuple[int, int],
    moves: list[list[tuple[Space, int, int]]],
) -> None:
    """charged_bytes() computes the peak from the births and drops only if pages of the arena have
    moved in the stretch, or a drop precedes a birth. Otherwise it counts the fast pages. In `slow`,
    each stretch has a move of no pages, so `slow` always computes the peak.

    moves: for each stretch of two steps, (space, page, status) of moves.
    """
    order = ordered(events, tiers)
    charge, slow = make_ordered(order, 8), make_ordered(order, 8)
    for now, of_stretch in enumerate(moves):
        for one in (charge, slow):
            one.begin(now)
        slow.moved(Space.ARENA, no_pages(), np.zeros(0, np.int32))
        assert charge.charged_bytes() == slow.charged_bytes()
        for space, page, status in of_stretch:
            if charge.spaces.maps[space].nodes[page] == ABSENT:
                status = -errno.ENOENT
            for one in (charge, slow):
                one.moved(space, np.array([page]), np.array([status], np.int32))
            assert charge.charged_bytes() == slow.charged_bytes()
        for one in (charge, slow):
            one.end()
        assert charge.charged_bytes() == slow.charged_bytes()
