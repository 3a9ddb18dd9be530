# SPDX-License-Identifier: Apache-2.0
"""Layouts: tensors that span regions of different tiers, and alignment to huge pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import Plan, Region
from sentineld.model.profile import ACCESS_DTYPE, TENSOR_DTYPE, Profile
from sentineld.model.protocol import HUGE_BYTES
from sentineld.plan.accesses import access_table
from sentineld.plan.check import PlanError, verify
from sentineld.plan.expected import expected_step
from sentineld.plan.layout import Area, area_offsets, build_layout, cut_at_regions
from sentineld.plan.residency import peak_fast_pages, residency
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers, with_layout


def across() -> Plan:
    """toy_plan() with the activation's first page born fast and its second page born slow."""
    regions = (
        Region(0, PAGE, 0, "pool"),
        Region(PAGE, PAGE, 0, "fast-born part"),
        Region(2 * PAGE, PAGE, 1, "slow-born part"),
        Region(3 * PAGE, 2 * PAGE, 1, "slow-born"),
    )
    return with_layout(toy_plan(), regions=regions)


def test_ranges_are_split_at_region_borders() -> None:
    index, offset, size = cut_at_regions(
        toy_plan().layout, PAGE * np.array([0, 1, 0, 2]), PAGE * np.array([1, 2, 3, 3])
    )
    assert index.tolist() == [0, 1, 2, 2, 3, 3]
    assert (offset // PAGE).tolist() == [0, 1, 0, 1, 2, 3]
    assert (size // PAGE).tolist() == [1, 2, 1, 2, 1, 2]


def test_a_slot_may_span_regions_but_not_leave_them() -> None:
    verify(across(), toy_profile(), 6 * PAGE)
    gap = tuple(region for region in across().layout.regions if region.name != "slow-born part")
    with pytest.raises(PlanError, match="a slot is not fully inside the regions"):
        verify(with_layout(across(), regions=gap), toy_profile(), 6 * PAGE)


def test_parts_of_a_slot_are_born_and_charged_on_different_tiers() -> None:
    plan, profile = across(), toy_profile()
    # Stretch 0 has 6 fast pages: pool 1 + parameter 2 + state being demoted 2 + activation 1.
    # Promoted pages count as fast from the next stretch on: the state's 2 pages are promoted in
    # stretch 2 and count in stretch 3.
    found = peak_fast_pages(plan, profile, residency(plan, profile))
    assert found.tolist() == [6, 4, 4, 5]
    births = expected_step(profile, plan.layout).births
    parts = births[(births["offset"] >= PAGE) & (births["offset"] < 3 * PAGE)]
    assert (parts["offset"] // PAGE).tolist() == [1, 2]
    assert parts["tier"].tolist() == [0, 1]


def test_accesses_to_a_split_slot_are_charged_per_part() -> None:
    table = access_table(toy_profile(), across().layout, two_tiers())
    rows = table[(table["stretch"] == 0) & (table["offset"] >= PAGE) & (table["flags"] != 0)]
    assert rows["pages"].tolist() == [1, 1]
    assert (rows["offset"] // PAGE).tolist() == [1, 2]
    assert rows["node"].tolist() == [0, 1]
    assert rows["touched"].tolist() == [1, 1]


HUGE_PAGES = HUGE_BYTES // PAGE


def large_step(sizes: list[int]) -> Profile:
    """Tensors of these sizes in pages, one alive at a time, without accesses."""
    tensors = np.zeros(len(sizes), TENSOR_DTYPE)
    tensors["slot"] = np.arange(len(sizes))
    tensors["bytes"] = np.array(sizes) * PAGE
    tensors["birth_event"] = 2 * np.arange(len(sizes))
    tensors["death_event"] = tensors["birth_event"] + 1
    return replace(
        toy_profile(),
        tensors=tensors,
        accesses=np.zeros(0, ACCESS_DTYPE),
        slot_count=len(sizes),
        event_count=2 * len(sizes),
    )


def test_unmoved_tensors_are_aligned_to_huge_pages() -> None:
    """An area (the tensors of one region of the arena) is packed in parts. Tensors that fill whole
    huge pages share one part. The other tensors that are larger than a huge page have one part for
    each size.

    Within a part, tensors that live one after the other share addresses. Small and moved tensors
    are packed behind these parts.
    """
    sizes = [2 * HUGE_PAGES, HUGE_PAGES, HUGE_PAGES + 3, 700, 700, 700, 5]
    rows = np.arange(len(sizes))
    still = np.array([True, True, True, True, True, False, True])
    profile = large_step(sizes)
    for grouped in (False, True):
        offsets, size = area_offsets(profile, rows, grouped, still)
        assert offsets[0] == offsets[1]
        assert offsets[3] == offsets[4]
        assert not (offsets[:5] % HUGE_PAGES).any()
        ends = offsets + sizes
        for one, other in ((0, 2), (0, 3), (2, 3), (0, 5), (2, 5), (3, 5), (0, 6), (2, 6), (3, 6)):
            assert offsets[one] >= ends[other] or offsets[other] >= ends[one]
        assert size == ends.max()
        # Without alignment, all tensors lie at offset 0.
        offsets, size = area_offsets(profile, rows[:6], grouped=False)
        assert (offsets == 0).all()
        assert size == 2 * HUGE_PAGES


def test_regions_that_can_hold_a_huge_page_are_aligned() -> None:
    profile = large_step([3, HUGE_PAGES, 4])
    rows = [np.array([row], np.int64) for row in range(3)]
    no = np.zeros(1, np.bool_)
    areas = [Area(str(at), 0, row, no) for at, row in enumerate(rows)]
    layout = build_layout(profile, areas, np.zeros(4, np.int64), None)
    places = [(one.offset // PAGE, one.bytes // PAGE) for one in layout.regions]
    assert places == [(0, 3), (HUGE_PAGES, HUGE_PAGES), (2 * HUGE_PAGES, 4)]
    assert (layout.slots["offset"] // PAGE).tolist() == [0, HUGE_PAGES, 2 * HUGE_PAGES]
    assert layout.arena_bytes == (2 * HUGE_PAGES + 4) * PAGE


def test_the_most_accessed_tensors_of_a_block_come_first() -> None:
    # Three tensors of two pages each are alive together and are accessed in the same stretch. The
    # module saw 2, 6 and 3 page accesses to them.
    profile = large_step([2, 2, 2])
    tensors = profile.tensors.copy()
    tensors["birth_event"], tensors["death_event"] = [0, 1, 2], [3, 4, 5]
    accesses = np.array(
        [(0, 0, PAGE, 0, 2, 2), (0, 1, PAGE, 0, 2, 6), (0, 2, PAGE, 0, 2, 3)], ACCESS_DTYPE
    )
    profile = replace(profile, tensors=tensors, accesses=accesses, source="module+shim")
    offsets, size = area_offsets(profile, np.arange(3))
    assert (offsets.tolist(), size) == ([4, 0, 2], 6)
    # Without the module, the accesses are equal, and the tensors stay in the profile's order.
    offsets, _ = area_offsets(replace(profile, source="shim"), np.arange(3))
    assert offsets.tolist() == [0, 2, 4]
