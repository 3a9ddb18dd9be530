# SPDX-License-Identifier: Apache-2.0
"""Which dead pages are kept, compared with a model that tracks every page."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import MOVE_DTYPE, SLOT_DROP, Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.drops import drops
from sentineld.plan.keep import RESIDENT_MAX, keep, longest_kept
from sentineld.plan.turnover import Turnover, alive_pages, slot_flags, turnover
from tests.unit.plan.turning import FAST_PAGES, PAGE, resident, step, steps


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


def test_on_request_no_slow_pages_are_kept() -> None:
    # Two tensors use the slow pages 6-7 in turn. A third tensor uses the fast pages 0-1.
    plan, profile = step([(6, 2, 0, 1, True), (6, 2, 2, 7, True), (0, 2, 3, 4, True)])
    for keeps_slow in (True, False):
        kept = keep(plan, profile, 6, keeps_slow=keeps_slow)
        dropped = [bool(flag & SLOT_DROP) for flag in slot_flags(kept.layout, profile)]
        assert dropped == [not keeps_slow, not keeps_slow, False]


@given(steps(), st.integers(0, FAST_PAGES))
def test_fast_pages_are_kept_in_a_share_of_the_free_memory(
    one: tuple[Plan, Profile], limit: int
) -> None:
    plan, profile = one
    before, _ = resident(plan, profile)
    half, _ = resident(keep(plan, profile, limit, share=0.5), profile)
    for now, then in zip(before, half, strict=True):
        assert then <= now + max(limit - now, 0) // 2


def test_slow_pages_with_long_gaps_are_dropped() -> None:
    # Slow pages 6-7 and 8-9 are used in turn, never at the same time, so one pair of pages would
    # suffice for both tensors.
    lives = [(6, 2, 0, 1, False), (8, 2, 2, 3, False)]
    plan, profile = step(lives)
    flags = slot_flags(keep(plan, profile, 6).layout, profile)
    assert all(flag & SLOT_DROP for flag in flags)
    # If later tensors of the step need both pairs at the same time, both pairs are kept in all
    # gaps.
    plan, profile = step([*lives, (6, 2, 4, 7, False), (8, 2, 5, 6, False)])
    flags = slot_flags(keep(plan, profile, 6).layout, profile)
    assert not any(flag & SLOT_DROP for flag in flags)


def test_slow_pages_with_promotions_are_dropped() -> None:
    # Two tensors use the slow pages 6-7 in turn. Only the first page of the first tensor is
    # promoted. If this promotion is late, it moves page 6 of the second tensor.
    plan, profile = step([(6, 2, 0, 3, False), (6, 2, 4, 7, False)])
    promotion = (1, 1, 0, Space.ARENA, 0, 6 * PAGE, PAGE)
    kept = keep(replace(plan, moves=np.array([promotion], MOVE_DTYPE)), profile, 6)
    dropped = [
        (int(row["slot"]), int(row["offset"]) // PAGE, int(row["bytes"]) // PAGE)
        for row in drops(kept.layout, PAGE)
    ]
    assert dropped == [(0, 6, 1), (1, 6, 1)]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), min_size=1, max_size=7
    ),
    st.lists(st.integers(0, 3), min_size=10, max_size=10),
)
def test_the_number_of_kept_ranges_is_optimal(
    gaps: list[tuple[int, int, bool]], free: list[int]
) -> None:
    # Each tenancy has one page. Its gap, the time from its death to the next birth on this page,
    # ends before the end of the step.
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
    # Pages 0-1 are born again right after each death. Pages 2-3 and 4-5 are born again only in the
    # next step.
    lives = [(0, 2, 0, 1, True), (0, 2, 2, 9, True), (2, 2, 3, 4, True), (4, 2, 5, 6, True)]
    plan, profile = step(lives)
    kept = keep(plan, profile, 4)
    flags = slot_flags(kept.layout, profile)
    assert [bool(flag & SLOT_DROP) for flag in flags] == [False, False, True, True]
    everything = keep(plan, profile, 6)
    assert not (slot_flags(everything.layout, profile) & SLOT_DROP).any()
