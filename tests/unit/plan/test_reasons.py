# SPDX-License-Identifier: Apache-2.0
"""The reason for the placement of each of the toy profile's tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import SLOT_PLANNED, Plan
from sentineld.model.profile import Kind, Profile
from sentineld.plan.reasons import reasons
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, with_layout

ACTIVATION, SCRATCH, GRADIENT, STATE, PARAMETER = range(5)


def unplanned(plan: Plan, slot: int) -> Plan:
    slots = plan.layout.slots.copy()
    slots["flags"][slot] &= ~np.uint32(SLOT_PLANNED)
    return with_layout(plan, slots=slots)


def without_accesses(profile: Profile, tensor: int) -> Profile:
    rows = profile.accesses
    return replace(profile, accesses=rows[rows["tensor"] != tensor])


def test_reasons_of_the_toy() -> None:
    # Half of the state is fast in two of the four stretches. This half is demoted and promoted in
    # each step.
    found = reasons(toy_plan(), toy_profile())
    assert found == (
        "fast for its whole lifetime: its accesses justify the fast memory",
        "short-lived (freed in the layer that allocates it): in the pool, which stays fast",
        "slow: other tensors gain more from the same fast memory and moves",
        "fast for 25% of its lifetime, moved 1.0 times per step: its accesses justify the moves",
        "fast for its whole lifetime: its accesses justify the fast memory",
    )


def test_a_short_lived_tensor_outside_a_pool_is_dropped() -> None:
    regions = tuple(
        replace(region, name="short-lived") if region.name == "pool" else region
        for region in toy_plan().layout.regions
    )
    found = reasons(with_layout(toy_plan(), regions=regions), toy_profile())
    assert found[SCRATCH].endswith("layer that allocates it): fast, and dropped at its death")


def test_a_tensor_that_is_split_without_moves() -> None:
    still = replace(toy_plan(), moves=toy_plan().moves[:0])
    found = reasons(still, toy_profile())
    assert found[STATE] == "50% of its pages fast for the whole step, the others slow"


def test_moves_of_a_transient_tensor_name_its_region() -> None:
    moves = toy_plan().moves[:1].copy()
    moves["boundary"], moves["tensor"], moves["space"] = 3, GRADIENT, 0
    moves["tier"], moves["offset"] = 0, 3 * PAGE
    found = reasons(replace(toy_plan(), moves=moves), toy_profile())
    assert found[GRADIENT].startswith("slow-born, fast for 33% of its lifetime, moved 1.0 times")


def test_tensors_without_accesses() -> None:
    found = reasons(toy_plan(), without_accesses(toy_profile(), GRADIENT))
    assert found[GRADIENT] == "slow: not accessed in the step"
    found = reasons(toy_plan(), without_accesses(toy_profile(), ACTIVATION))
    assert found[ACTIVATION] == "fast for 100% of its lifetime: not accessed in the step"


def test_tensors_outside_the_plan() -> None:
    profile = toy_profile()
    profile.tensors["address"][STATE] = profile.heap_base - PAGE
    profile.tensors["kind"][SCRATCH] = Kind.PERSISTENT
    plan = replace(toy_plan(), moves=toy_plan().moves[:0])
    found = reasons(unplanned(unplanned(plan, 0), 1), profile)
    assert found[ACTIVATION] == "not in the plan: allocated from the heap"
    assert found[SCRATCH] == "outlives the step that allocates it: allocated from the heap"
    assert found[STATE] == "outside the shim's heap: not managed"
