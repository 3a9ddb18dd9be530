# SPDX-License-Identifier: Apache-2.0
"""The access table, which the daemon sends to the shim: on emulated tiers with the costs of slow
accesses, on paged tiers without costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import SLOT_DROP, SLOT_PLANNED
from sentineld.model.protocol import AccessFlag
from sentineld.model.tiers import Overlap
from sentineld.model.timing import timing_of
from sentineld.plan.accesses import access_table
from tests.unit.plan.toys import LARGE, PAGE, large_profile, toy_plan, toy_profile, two_tiers

HEAP, AT_BIRTH, AFTER, HIDES = (int(flag) for flag in AccessFlag)


def test_each_access_of_the_toy() -> None:
    table = access_table(toy_profile(), toy_plan().layout, two_tiers())
    rows = table[["stretch", "offset", "pages", "touched", "flags", "node"]].tolist()
    assert rows == [
        (0, PAGE, 2, 2, AT_BIRTH, 0),  # the activation, born on dropped pages
        (0, 0, 1, 1, 0, 0),  # scratch, in the pool
        (1, 4 * PAGE, 2, 2, HEAP, 0),
        (2, PAGE, 2, 2, 0, 0),
        (2, 3 * PAGE, 2, 2, 0, 1),  # the gradient: kept pages, born slow
        (2, 4 * PAGE, 2, 2, HEAP, 0),
        (3, 3 * PAGE, 2, 2, 0, 1),
        (3, 0, 4, 4, HEAP, 0),
        (3, 4 * PAGE, 2, 2, HEAP, 0),
    ]
    assert not table["slow_ps"].any()  # small tensors count as cached


def test_pages_are_born_anew_if_the_tensor_before_drops_them() -> None:
    # The gradient keeps its pages. Scratch lies on the first of them and drops it.
    slots = toy_plan().layout.slots.copy()
    slots["offset"][1] = 3 * PAGE
    slots["flags"][1] |= SLOT_DROP
    table = access_table(toy_profile(), replace(toy_plan().layout, slots=slots), two_tiers())
    rows = table[["stretch", "offset", "pages", "touched", "flags", "node"]]
    assert rows[table["flags"] & HEAP == 0].tolist() == [
        (0, PAGE, 2, 2, AT_BIRTH, 0),
        (0, 3 * PAGE, 1, 1, 0, 1),  # scratch, born on a page that the gradient has kept
        (2, PAGE, 2, 2, 0, 0),
        (2, 3 * PAGE, 1, 1, AT_BIRTH, 1),  # the gradient, born on the page that scratch has dropped
        (2, 4 * PAGE, 1, 1, 0, 1),
        (3, 3 * PAGE, 2, 2, 0, 1),
    ]


def test_the_parts_of_a_tensor_share_its_touched_pages() -> None:
    profile, slots = toy_profile(), toy_plan().layout.slots.copy()
    slots["offset"][1] = 3 * PAGE
    slots["flags"][1] |= SLOT_DROP
    # The access of the gradient, of whose two pages one is born anew.
    rows = (profile.accesses["tensor"] == 2) & (profile.accesses["stretch"] == 2)
    profile.accesses["pages"][rows] = 1
    table = access_table(profile, replace(toy_plan().layout, slots=slots), two_tiers())
    table = table[table["flags"] & HEAP == 0]
    parts = table[(table["stretch"] == 2) & (table["offset"] >= 3 * PAGE)]
    assert parts["pages"].tolist() == [1, 1]
    assert parts["touched"].sum() == 1


def test_costs_match_the_timing_model() -> None:
    profile, tiers = large_profile(), two_tiers()
    layout = toy_plan().layout
    slots = layout.slots.copy()
    slots["offset"] *= LARGE
    table = access_table(profile, replace(layout, slots=slots, regions=()), tiers)
    extra_ns = timing_of(tiers).extra_ns(profile)
    assert extra_ns.sum() > 0
    charged_ns = table["slow_ps"].astype(float) * table["pages"] / 1000
    assert charged_ns == pytest.approx(extra_ns, rel=1e-5)


def test_computation_that_hides_accesses_has_a_row_in_each_stretch() -> None:
    profile, layout = large_profile(), toy_plan().layout
    slots = layout.slots.copy()
    slots["offset"] *= LARGE
    layout = replace(layout, slots=slots, regions=())
    plain = access_table(profile, layout, two_tiers())
    tiers = replace(two_tiers(), overlap=Overlap.COMPUTE)
    table = access_table(profile, layout, tiers)
    hides = (table["flags"] & HIDES) != 0
    assert table[~hides].tolist() == plain.tolist()
    assert table["stretch"][hides].tolist() == [0, 1, 2, 3]
    hidden_ns = timing_of(tiers).costs(profile).hidden_ns
    assert table["slow_ps"][hides] / 1000 == pytest.approx(hidden_ns)
    assert (np.diff(table["stretch"].astype(int)) >= 0).all()
    assert hides[np.flatnonzero(np.diff(table["stretch"].astype(int), prepend=-1))].all()


def test_tensors_outside_the_plan_are_on_the_tier_of_heap_births() -> None:
    layout = toy_plan().layout
    slots = layout.slots.copy()
    slots["flags"][0] &= ~np.uint32(SLOT_PLANNED)
    table = access_table(toy_profile(), replace(layout, slots=slots), two_tiers())
    activation = table[[0, 3]]
    assert activation["flags"].tolist() == [AT_BIRTH, AT_BIRTH]
    assert activation["node"].tolist() == [1, 1]


def test_persistent_tensors_outside_the_heap_are_fast() -> None:
    profile = replace(toy_profile(), heap_base=toy_profile().heap_base + 4 * PAGE)
    table = access_table(profile, toy_plan().layout, two_tiers())
    assert table["flags"][7] == AT_BIRTH  # the state: the heap now begins above it
    assert table["node"][7] == 0
    assert (table["flags"][8], table["offset"][8]) == (HEAP, 0)


def test_slots_that_take_smaller_tensors_are_named() -> None:
    layout = toy_plan().layout
    slots = layout.slots.copy()
    slots["slack"][[0, 2]] = 1
    table = access_table(toy_profile(), replace(layout, slots=slots), two_tiers())
    assert table["slot"].tolist() == [1, 0, 0, 1, 3, 0, 3, 0, 0]
    # AFTER: the slot takes smaller tensors, and the access is in the stretch of the tensor's birth.
    # It is counted when the next stretch begins, because the tensor's size is unknown before the
    # birth.
    assert table["flags"].tolist() == [AT_BIRTH | AFTER, 0, HEAP, 0, AFTER, HEAP, 0, HEAP, HEAP]
