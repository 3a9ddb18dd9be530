# SPDX-License-Identifier: Apache-2.0
"""The cells of the toy's handmade plan.

page of the arena   0     scratch
                    1..2  activation, dropped
                    3..4  gradient
heap                0..1  the half of the state that moves
                    2..3  the other half
                    4..5  parameter
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import PART_DTYPE, SLOT_DROP_PARTS, SLOT_PLANNED, Region, Space
from sentineld.model.timing import timing_of
from sentineld.simulate.cells import UNPLACED, cells_of, page_costs
from tests.unit.plan.toys import (
    PAGE,
    large_plan,
    large_profile,
    toy_plan,
    toy_profile,
    two_tiers,
    with_layout,
)

ACTIVATION, SCRATCH, GRADIENT, STATE, PARAMETER = range(5)


def test_cells_of_the_toy() -> None:
    cells = cells_of(toy_plan(), toy_profile())
    arena, heap = int(Space.ARENA), int(Space.HEAP)
    assert cells.space.tolist() == [arena] * 3 + [heap] * 3
    assert cells.first.tolist() == [0, 1, 3, 0, 2, 4]
    assert cells.pages.tolist() == [1, 2, 2, 2, 2, 2]
    assert cells.born_fast.tolist() == [1, 2, 0, 0, 0, 0]  # the heap's pages are born slow
    assert cells.persistent.tolist() == [False] * 3 + [True] * 3
    assert cells.dropped.tolist() == [False, True, False, False, False, False]
    spans = list(zip(cells.low.tolist(), cells.high.tolist(), strict=True))
    assert spans == [(1, 2), (0, 1), (2, 3), (3, 5), (5, 6)]
    dropped = (cells.dropper.tolist(), cells.drop_low.tolist(), cells.drop_high.tolist())
    assert dropped == ([ACTIVATION], [1], [2])


def test_ranges_of_moves_are_whole_cells() -> None:
    plan = toy_plan()
    cells = cells_of(plan, toy_profile())
    assert cells.inside(plan.moves, PAGE) == [(3, 4), (3, 4)]
    assert cells.inside(plan.initial, PAGE) == [(3, 4), (4, 5), (5, 6)]


def test_dropped_parts_and_regions_cut_tensors() -> None:
    # The gradient drops its second page, and the activation spans two regions.
    plan = toy_plan()
    slots = plan.layout.slots.copy()
    slots["flags"][2] = SLOT_PLANNED | SLOT_DROP_PARTS
    pool, fast, slow = plan.layout.regions
    regions = (
        pool,
        Region(PAGE, PAGE, 0, fast.name),
        Region(2 * PAGE, PAGE, 1, "slow-born part"),
        slow,
    )
    parts = np.array([(4 * PAGE, PAGE, 2, 0)], PART_DTYPE)
    cells = cells_of(with_layout(plan, slots=slots, regions=regions, parts=parts), toy_profile())
    assert cells.first.tolist() == [0, 1, 2, 3, 4, 0, 2, 4]
    assert cells.born_fast.tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    assert cells.dropped.tolist() == [False, True, True, False, True, False, False, False]
    drops = list(zip(cells.dropper, cells.drop_low, cells.drop_high, strict=True))
    assert sorted(drops) == [(ACTIVATION, 1, 3), (GRADIENT, 4, 5)]


def test_tensors_outside_the_plan_have_separate_ranges_and_are_dropped() -> None:
    plan, profile = toy_plan(), toy_profile()
    slots = plan.layout.slots.copy()
    slots["flags"][:2] = 0
    profile.tensors["address"][PARAMETER] = profile.heap_base - PAGE
    cells = cells_of(with_layout(plan, slots=slots, heap_tier=None), profile)
    outside = cells.space == UNPLACED
    assert cells.pages[outside].tolist() == [2, 1, 2]
    assert cells.persistent[outside].tolist() == [False, False, True]
    # The plan gives the heap no tier, so all pages outside the arena are born fast.
    assert cells.born_fast[outside].tolist() == [2, 1, 2]
    assert set(cells.dropper.tolist()) == {ACTIVATION, SCRATCH}


@pytest.mark.parametrize("tier", [None, 0, 1])
def test_pages_are_born_on_the_tier_of_their_region(tier: int | None) -> None:
    plan = toy_plan()
    regions = tuple(replace(region, tier=tier) for region in plan.layout.regions)
    cells = cells_of(with_layout(plan, regions=regions, heap_tier=tier), toy_profile())
    fast = tier != 1
    assert cells.born_fast.tolist() == [int(pages) * fast for pages in cells.pages]


def test_costs_of_a_slow_page_by_hand() -> None:
    # The fast tier reads and writes 8 GB/s, the slow tier reads 4 GB/s and writes 2 GB/s. So in
    # slow memory, a byte takes 1/4 - 1/8 = 0.125 ns more to read and 1/2 - 1/8 = 0.375 ns more to
    # write. All bytes are read, and half of them are also written.
    profile = large_profile()
    cells = cells_of(large_plan(), profile)
    extra = timing_of(two_tiers()).extra_ns(profile)
    costs = page_costs(profile, cells, extra, np.ones(len(extra), np.bool_))
    used = np.zeros((4, 6))
    for stretch, cell in ((0, 0), (0, 1), (1, 5), (2, 1), (2, 2), (2, 5), (3, 2), (3, 3), (3, 4)):
        used[stretch, cell] = 1
    used[3, 5] = 1
    whole = (0.125 + 0.375 / 2) * PAGE
    # The scratch has 63 pages, but large_profile() counts the access to it as an access to 64
    # pages; hence the tolerance.
    assert costs == pytest.approx(used * whole, rel=0.03)
    assert np.array_equal(costs > 0, used > 0)
    only_state = page_costs(profile, cells, extra, profile.accesses["tensor"] == STATE)
    assert np.flatnonzero(only_state.sum(axis=0)).tolist() == [3, 4]
