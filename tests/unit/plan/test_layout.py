# SPDX-License-Identifier: Apache-2.0
"""Tensors that lie across regions: born in part on one tier, in part on the other."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.migrate.expected import expected_step
from sentineld.plan.accesses import access_table
from sentineld.plan.check import PlanError, verify
from sentineld.plan.layout import cut_at_regions
from sentineld.plan.model import Plan, Region
from sentineld.plan.residency import crowded_pages, residency
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers, with_layout


def across() -> Plan:
    """The plan by hand with the activation's first page born fast and its second one slow."""
    regions = (
        Region(0, PAGE, 0, "pool"),
        Region(PAGE, PAGE, 0, "fast-born part"),
        Region(2 * PAGE, PAGE, 1, "slow-born part"),
        Region(3 * PAGE, 2 * PAGE, 1, "slow-born"),
    )
    return with_layout(toy_plan(), regions=regions)


def test_ranges_are_cut_where_regions_end() -> None:
    index, offset, size = cut_at_regions(
        toy_plan().layout, PAGE * np.array([0, 1, 0, 2]), PAGE * np.array([1, 2, 3, 3])
    )
    assert index.tolist() == [0, 1, 2, 2, 3, 3]
    assert (offset // PAGE).tolist() == [0, 1, 0, 1, 2, 3]
    assert (size // PAGE).tolist() == [1, 2, 1, 2, 1, 2]


def test_a_slot_may_lie_across_regions_but_not_beyond_them() -> None:
    verify(across(), toy_profile(), 6 * PAGE)
    gap = tuple(region for region in across().layout.regions if region.name != "slow-born part")
    with pytest.raises(PlanError, match="a slot lies outside of them"):
        verify(with_layout(across(), regions=gap), toy_profile(), 6 * PAGE)


def test_its_parts_are_charged_and_born_on_their_own_tiers() -> None:
    plan, profile = across(), toy_profile()
    # Stretch 0: pool 1, parameter 2, state going down 2, one page of the activation.
    # Promotions count once they have landed: the state's 2 of stretch 2 are charged in 3.
    found = crowded_pages(plan, profile, residency(plan, profile))
    assert found.tolist() == [6, 4, 4, 5]
    births = expected_step(profile, plan.layout).births
    parts = births[(births["offset"] >= PAGE) & (births["offset"] < 3 * PAGE)]
    assert (parts["offset"] // PAGE).tolist() == [1, 2]
    assert parts["tier"].tolist() == [0, 1]


def test_its_accesses_are_charged_part_by_part() -> None:
    table = access_table(toy_profile(), across().layout, two_tiers())
    rows = table[(table["stretch"] == 0) & (table["offset"] >= PAGE) & (table["flags"] != 0)]
    assert rows["pages"].tolist() == [1, 1]
    assert (rows["offset"] // PAGE).tolist() == [1, 2]
    assert rows["node"].tolist() == [0, 1]
    assert rows["touched"].tolist() == [1, 1]
