# SPDX-License-Identifier: Apache-2.0
"""Dropped and kept pages, compared with a model that tracks every page."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import (
    MOVE_DTYPE,
    SLOT_DROP,
    SLOT_DTYPE,
    SLOT_PLANNED,
    Layout,
    Plan,
    Prediction,
    Region,
)
from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.plan.drops import drops
from sentineld.plan.keep import RESIDENT_MAX, keep, longest_kept
from sentineld.plan.residency import peak_fast_pages, residency
from sentineld.plan.turnover import Turnover, alive_pages, first_moments, slot_flags, turnover

PAGE = 4096
FAST_PAGES, SLOW_PAGES = 6, 4


def step(
    lives: list[tuple[int, int, int, int, bool]], per_stretch: int = 2
) -> tuple[Plan, Profile]:
    """A step of tensors that never overlap.

    lives: (first page, pages, birth, death, dropped); birth and death are events. A death at or
    before the birth is in the next step.
    """
    events = 1 + max((max(birth, death) for _, _, birth, death, _ in lives), default=0)
    count = -(-events // per_stretch)
    tensors = np.zeros(len(lives), TENSOR_DTYPE)
    slots = np.zeros(len(lives), SLOT_DTYPE)
    for row, (first, pages, birth, death, dropped) in enumerate(lives):
        tensors[row] = (
            *(row, Kind.ACTIVATION, pages * PAGE, 0, birth, death),
            *(birth // per_stretch, death // per_stretch, death <= birth),
        )
        slots[row] = (pages * PAGE, first * PAGE, SLOT_PLANNED | (SLOT_DROP if dropped else 0), 0)
    stretches = np.zeros(count, STRETCH_DTYPE)
    stretches["event"] = np.arange(count) * per_stretch
    stretches["time_ns"] = 1000
    profile = Profile(
        tensors=tensors,
        accesses=np.zeros(0, ACCESS_DTYPE),
        stretches=stretches,
        layers=(),
        slot_count=len(lives),
        event_count=events,
        page_bytes=PAGE,
        peak_bytes=PAGE,
        source="shim",
        unattributed_pages=0,
    )
    last = max((first + pages for first, pages, *_ in lives), default=0)
    regions = (
        Region(0, FAST_PAGES * PAGE, 0, "fast"),
        Region(FAST_PAGES * PAGE, max(SLOW_PAGES, last - FAST_PAGES) * PAGE, 1, "slow"),
    )
    layout = Layout(
        slots=slots,
        cuts=np.zeros(0, np.uint32),
        regions=regions,
        waits=np.full(count, -1, np.int32),
        arena_bytes=max(FAST_PAGES + SLOW_PAGES, last) * PAGE,
    )
    plan = Plan(
        policy="test",
        budget_bytes=1 << 30,
        layout=layout,
        moves=np.zeros(0, MOVE_DTYPE),
        initial_tier=np.zeros(len(lives), np.uint8),
        reasons=(),
        predicted=Prediction(0, 0, 0, 0, 0.0),
    )
    return plan, profile


@st.composite
def steps(draw: st.DrawFn) -> tuple[Plan, Profile]:
    """Tensors on ten pages; each event is one birth or one death.

    No lifetime wraps and ends in the stretch of its birth: residency() would count it for all of
    that stretch.
    """
    per_stretch = draw(st.integers(1, 4))
    wanted = draw(
        st.lists(
            st.tuples(
                st.integers(0, FAST_PAGES + SLOW_PAGES - 1), st.integers(1, 5), st.booleans()
            ),
            min_size=1,
            max_size=8,
        )
    )
    order = draw(st.permutations([*range(len(wanted)), *range(len(wanted))]))
    taken: list[tuple[set[int], set[int]]] = []
    lives = []
    events = len(order)
    for row, (first, pages, dropped) in enumerate(wanted):
        birth, death = (at for at, who in enumerate(order) if who == row)
        if draw(st.booleans()):
            birth, death = death, birth
        if death <= birth and death // per_stretch == birth // per_stretch:
            continue
        alive = {at % events for at in range(birth, death if death > birth else death + events)}
        lie = set(range(first, min(first + pages, FAST_PAGES + SLOW_PAGES)))
        if any(alive & times and lie & pages_ for times, pages_ in taken):
            continue
        taken.append((alive, lie))
        lives.append((min(lie), len(lie), birth, death, dropped))
    return step(lives, per_stretch)


def resident(plan: Plan, profile: Profile) -> tuple[list[int], int]:
    """(resident fast pages at each moment of a steady step, number of births in it)."""
    dropped_pages: dict[int, set[int]] = {}
    for row in drops(plan.layout, PAGE):
        first, past = int(row["offset"]), int(row["offset"] + row["bytes"])
        dropped_pages.setdefault(int(row["slot"]), set()).update(range(first // PAGE, past // PAGE))
    slots, tensors = plan.layout.slots, profile.tensors
    first = first_moments(profile)
    happens: dict[int, list[tuple[int, int]]] = {}
    for row, tensor in enumerate(tensors):
        for birth, name in ((1, "birth"), (0, "death")):
            at = int(tensor[f"{name}_event"]) + int(tensor[f"{name}_stretch"]) + 1
            happens.setdefault(at % int(first[-1]), []).append((birth, row))
    there: set[int] = set()
    found: list[int] = []
    born = 0
    for turn in range(3):
        for moment in range(int(first[-1])):
            for birth, row in sorted(happens.get(moment, [])):
                begin = int(slots["offset"][row]) // PAGE
                pages = set(range(begin, begin + int(tensors["bytes"][row]) // PAGE))
                pages &= set(range(FAST_PAGES))
                if birth:
                    born += len(pages - there) if turn == 2 else 0
                    there |= pages
                else:
                    there -= dropped_pages.get(row, set())
            if turn == 2:
                found.append(len(there))
    return found, born


@given(steps())
def test_pages_count_from_birth_to_drop(one: tuple[Plan, Profile]) -> None:
    plan, profile = one
    there, born = resident(plan, profile)
    first = first_moments(profile)
    fullest = [max(there[low:high]) for low, high in pairwise(first)]
    assert peak_fast_pages(plan, profile, residency(plan, profile)).tolist() == fullest
    assert turnover(plan.layout, profile).births(profile).sum() == born


@given(steps(), st.integers(0, FAST_PAGES))
def test_kept_pages_fit_and_save_births(one: tuple[Plan, Profile], limit: int) -> None:
    plan, profile = one
    before, born = resident(plan, profile)
    kept = keep(plan, profile, limit)
    after, born_then = resident(kept, profile)
    assert born_then <= born
    for now, then in zip(before, after, strict=True):
        assert then <= max(limit, now)
    if limit >= FAST_PAGES:
        assert born_then == 0
    if limit == 0:
        assert after == before


@given(steps(), st.integers(0, FAST_PAGES))
def test_slow_pages_are_kept_up_to_the_resident_limit(
    one: tuple[Plan, Profile], limit: int
) -> None:
    plan, profile = one
    kept, alive = keep(plan, profile, limit), alive_pages(plan.layout, profile)
    moments = len(alive)
    fast, slow = (
        turnover(kept.layout, profile, tiers).kept_pages(moments) for tiers in ((0,), (1, None))
    )
    most = int(alive.max(initial=0) * RESIDENT_MAX)
    assert (alive + fast + slow <= np.maximum(most, alive + fast)).all()


def test_slow_pages_with_long_gaps_are_dropped() -> None:
    # Slow pages 6-7 and 8-9 are used in turn, never at the same time: one pair would suffice.
    lives = [(6, 2, 0, 1, False), (8, 2, 2, 3, False)]
    plan, profile = step(lives)
    flags = slot_flags(keep(plan, profile, 6).layout, profile)
    assert all(flag & SLOT_DROP for flag in flags)
    # If the step needs both at once, both are kept for the tensors that need only one.
    plan, profile = step([*lives, (6, 2, 4, 7, False), (8, 2, 5, 6, False)])
    flags = slot_flags(keep(plan, profile, 6).layout, profile)
    assert not any(flag & SLOT_DROP for flag in flags)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=7
    ),
    st.lists(st.integers(0, 3), min_size=10, max_size=10),
)
def test_the_number_of_kept_ranges_is_optimal(
    gaps: list[tuple[int, int, bool]], free: list[int]
) -> None:
    # Ranges of one page, none across the end of the step.
    death = np.array([min(ends) for *ends, _ in gaps])
    gap = np.array([abs(low - high) for low, high, _ in gaps])
    may = np.array([one for *_, one in gaps])
    none = np.zeros(len(gaps), np.int64)
    tenancies = Turnover(none, none, none + 1, death, gap, may, may)
    room = np.array(free)
    kept = longest_kept(tenancies, may, room)
    assert not (kept & ~may).any()
    assert (tenancies.used(np.flatnonzero(kept), 10) <= room).all()
    best = max(
        sum(choice)
        for choice in product((False, True), repeat=len(gaps))
        if (np.array(choice) <= may).all()
        and (tenancies.used(np.flatnonzero(choice), 10) <= room).all()
    )
    assert kept.sum() == best


def test_the_shortest_gap_is_kept_first() -> None:
    # Pages 0-1: the next birth follows at once; pages 2-3: much later; 4-5 are used in between.
    lives = [(0, 2, 0, 1, True), (0, 2, 2, 9, True), (2, 2, 3, 4, True), (4, 2, 5, 6, True)]
    plan, profile = step(lives)
    kept = keep(plan, profile, 4)
    flags = slot_flags(kept.layout, profile)
    assert [bool(flag & SLOT_DROP) for flag in flags] == [False, False, True, True]
    everything = keep(plan, profile, 6)
    assert not (slot_flags(everything.layout, profile) & SLOT_DROP).any()
