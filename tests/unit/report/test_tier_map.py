# SPDX-License-Identifier: Apache-2.0
"""The map of the toy plan: fast and accessed pages by address and stretch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.plan.residency import residency
from sentineld.report.tier_map import tier_map
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile

PROFILE, PLAN = toy_profile(), toy_plan()
TIERS = tier_map(PLAN, PROFILE, residency(PLAN, PROFILE), 1000)


def pages(share: Floats) -> list[list[float]]:
    """A table of the map as nested lists [stretch][page]; each row of this map is one page."""
    found: list[list[float]] = share.T.tolist()
    return found


def test_each_page_has_the_planned_tier() -> None:
    # heap: state 0..3, parameter 4..5; arena: scratch, activation 2 pages, gradient 2 pages
    assert [TIERS.heat.place(row) for row in (0, 4, 6)] == [
        "heap+0 B",
        "heap+16.0 KiB",
        "arena+0 B",
    ]
    assert pages(TIERS.heat.live) == [
        [*[1] * 6, 1, 1, 1, 1, 1],
        [*[1] * 6, 0, 1, 1, 0, 0],
        [*[1] * 6, 0, 1, 1, 1, 1],
        [*[1] * 6, 0, 0, 0, 1, 1],
    ]
    assert pages(TIERS.fast) == [
        [1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0],
    ]
    assert np.flatnonzero(TIERS.down[:, 0]).tolist() == [0, 1]
    assert np.flatnonzero(TIERS.up[:, 2]).tolist() == [0, 1]
    assert (TIERS.up.sum(), TIERS.down.sum()) == (2, 2)


def test_accesses_are_spread_over_a_tensors_pages() -> None:
    assert pages(TIERS.heat.accessed)[3] == [*[1] * 6, 0, 0, 0, 1, 1]
    half = PROFILE.accesses.copy()
    half["pages"][7] = 2  # of the 4 pages of the state
    profile = replace(PROFILE, accesses=half)
    accessed = tier_map(PLAN, profile, residency(PLAN, profile), 1000).heat.accessed
    assert accessed[:4, 3].tolist() == [0.5] * 4


def test_few_rows_have_the_shares_of_their_pages() -> None:
    small = tier_map(PLAN, PROFILE, residency(PLAN, PROFILE), 2)
    assert len(small.heat.live) == 2
    # The first row has 5 pages. In stretch 0, 2 of the state's 4 pages and a page of the parameter
    # are fast.
    assert small.fast[0, 0] == 3 / 5
    assert small.heat.accessed.max() <= 1


def test_boxes_of_wrapping_tensors_come_in_two_parts() -> None:
    boxes = TIERS.boxes
    gradient = boxes.take(boxes.tensor == 2)
    assert sorted(zip(gradient.first.tolist(), gradient.last.tolist(), strict=True)) == [
        (0, 0),
        (2, 3),
    ]
    state = boxes.take(boxes.tensor == 3)
    assert (state.begin.tolist(), state.past.tolist()) == ([0], [4])
    assert TIERS.heat.page_bytes == PAGE


def test_pages_whose_tier_the_kernel_chooses_are_marked() -> None:
    regions = tuple(replace(region, tier=None) for region in PLAN.layout.regions)
    plan = replace(PLAN, layout=replace(PLAN.layout, regions=regions))
    tiers = tier_map(plan, PROFILE, residency(plan, PROFILE), 1000)
    assert pages(tiers.chosen)[1] == [*[0] * 6, 0, 1, 1, 0, 0]
