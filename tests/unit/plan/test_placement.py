# SPDX-License-Identifier: Apache-2.0
"""Placed tensors stay on their tiers under any policy, within the budget.

tests/unit/policies/test_random_profiles.py plans random placements with all policies.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.plan import SLOT_DROP, SLOT_PLANNED, Plan, Space
from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Placement
from sentineld.model.tiers import Tiers
from sentineld.plan.check import verify
from sentineld.plan.placement import planned
from sentineld.policies.baselines import Baseline
from tests.unit.plan.toys import PAGE, late_plan, toy_plan, toy_profile, two_tiers

ACTIVATION, SCRATCH, GRADIENT, STATE, PARAMETER = range(5)
"""Rows of the toy's tensors."""


class Slow:
    """A policy whose plans keep everything slow; `asked` records the arguments of plan()."""

    name = "slow"

    def __init__(self, charges_budget: bool = True) -> None:
        self.charges_budget = charges_budget
        self.asked: list[tuple[int, Profile]] = []

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        self.asked.append((budget_bytes, profile))
        return Baseline(self.name, 1, "slow").plan(profile, tiers, budget_bytes)


def placed(**tiers: list[int]) -> Profile:
    """The toy's profile with some tensors placed. tiers: the rows to place on each tier."""
    profile = toy_profile()
    tensors = profile.tensors.copy()
    for tier, rows in tiers.items():
        tensors["placed"][rows] = Placement[tier.upper()]
    return replace(profile, tensors=tensors)


def test_without_requests_the_policy_makes_the_plan() -> None:
    policy, profile = Slow(), toy_profile()
    plan = planned(policy, profile, two_tiers(), 7 * PAGE)
    assert policy.asked[0][1] is profile
    assert plan.notes == ()


def test_a_policy_plans_the_other_tensors_with_the_other_memory() -> None:
    policy = Slow()
    plan = planned(
        policy, placed(fast=[ACTIVATION, PARAMETER], slow=[STATE]), two_tiers(), 7 * PAGE
    )
    ((budget_bytes, rest),) = policy.asked
    assert budget_bytes == 3 * PAGE  # activation and parameter have 2 pages each
    assert rest.tensors["slot"].tolist() == [1, 2]
    assert rest.slot_count == 3
    assert rest.accesses["tensor"].tolist() == [0, 1, 1]
    assert not rest.tensors["placed"].any()
    assert plan.budget_bytes == 7 * PAGE


def test_the_plan_has_the_placed_tensors_on_their_tiers() -> None:
    profile = placed(fast=[ACTIVATION, PARAMETER], slow=[STATE, GRADIENT])
    plan = planned(Slow(), profile, two_tiers(), 7 * PAGE)
    verify(plan, profile, 7 * PAGE)
    assert [(one.name, one.bytes, one.tier) for one in plan.layout.regions] == [
        ("all", PAGE, 1),
        ("placed fast", 2 * PAGE, 0),
        ("placed slow", 2 * PAGE, 1),
    ]
    assert plan.layout.slots["flags"].tolist() == [SLOT_PLANNED] * 3
    assert plan.layout.slots["bytes"].tolist() == profile.tensors["bytes"][:3].tolist()
    initial = plan.initial[plan.initial["space"] == Space.HEAP]
    assert initial[["tensor", "tier", "offset", "bytes"]].tolist() == [
        (STATE, 1, 0, 4 * PAGE),
        (PARAMETER, 0, 4 * PAGE, 2 * PAGE),
    ]
    assert plan.initial_tier.tolist() == [255, 255, 255, 1, 0]
    assert plan.reasons[SCRATCH] == "slow"
    assert plan.reasons[PARAMETER] == "fast: the script has placed it"
    assert plan.reasons[GRADIENT] == "slow: the script has placed it"
    assert plan.notes == (
        "the script has placed 2 tensors (16.0 KiB) in fast memory"
        " and 2 tensors (24.0 KiB) in slow memory",
    )
    assert plan.predicted.peak_fast_bytes == 4 * PAGE
    assert 0 < plan.predicted.fast_share < 1


def test_moves_of_other_tensors_refer_to_the_whole_profile() -> None:
    """The policy's plan moves the state, which is row 2 of the profile without placed tensors."""

    class ByHand(Slow):
        def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
            plan = toy_plan()
            initial = plan.initial[plan.initial["tensor"] == STATE].copy()
            moves = plan.moves.copy()
            initial["tensor"] = moves["tensor"] = 2
            return replace(plan, moves=moves, initial=initial, reasons=("",) * 3)

    profile = placed(slow=[GRADIENT, PARAMETER])
    plan = planned(ByHand(), profile, two_tiers(), 7 * PAGE)
    assert plan.moves["tensor"].tolist() == [STATE, STATE]
    assert set(plan.initial["tensor"].tolist()) == {STATE, PARAMETER}
    verify(plan, profile, 7 * PAGE)


def test_late_promotions_are_not_predicted_to_arrive() -> None:
    """The policy's plan promotes half of the state late, or has the state slow in all stretches."""

    class Late(Slow):
        def __init__(self, late: bool) -> None:
            super().__init__()
            self.late = late

        def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
            plan = late_plan(toy_plan())
            initial = plan.initial[plan.initial["tensor"] == STATE].copy()
            moves = plan.moves.copy()
            initial["tensor"] = moves["tensor"] = 2
            plan = replace(plan, moves=moves, initial=initial, reasons=("",) * 3)
            if self.late:
                return plan
            initial["tier"] = 1
            return replace(plan, moves=moves[:0], late=plan.late[:0], initial=initial)

    profile = placed(slow=[GRADIENT, PARAMETER])
    plan = planned(Late(True), profile, two_tiers(), 7 * PAGE)
    verify(plan, profile, 7 * PAGE)
    never = planned(Late(False), profile, two_tiers(), 7 * PAGE)
    assert plan.predicted.step_ns == never.predicted.step_ns
    assert plan.predicted.fast_share == never.predicted.fast_share
    assert plan.predicted.access_joules == never.predicted.access_joules
    # The late promotions take room and bandwidth nevertheless.
    assert plan.predicted.promoted_bytes == 2 * PAGE
    assert plan.predicted.peak_fast_bytes > never.predicted.peak_fast_bytes


@pytest.mark.parametrize("budget_bytes", [-PAGE, 0, 6 * PAGE])
def test_placed_tensors_that_fill_the_budget_are_refused(budget_bytes: int) -> None:
    with pytest.raises(SentinelError) as raised:
        planned(Slow(), placed(fast=[STATE, PARAMETER]), two_tiers(), budget_bytes)
    assert raised.value.code == "budget-too-large"
    assert "the script has placed 24.0 KiB in fast memory" in raised.value.message


def test_slow_tensors_need_no_budget() -> None:
    policy = Slow()
    planned(policy, placed(slow=[STATE, PARAMETER]), two_tiers(), 0)
    assert policy.asked[0][0] == 0


def test_a_policy_without_a_budget_is_never_refused() -> None:
    policy, profile = Slow(charges_budget=False), placed(fast=[STATE, PARAMETER])
    plan = planned(policy, profile, two_tiers(), 0)
    assert policy.asked[0][0] == 0
    verify(plan, profile, None)


def test_a_step_may_access_placed_tensors_only() -> None:
    profile = placed(fast=[ACTIVATION, SCRATCH, PARAMETER], slow=[STATE, GRADIENT])
    policy = Slow()
    plan = planned(policy, profile, two_tiers(), 7 * PAGE)
    assert not policy.asked
    verify(plan, profile, 7 * PAGE)


def test_a_tensor_that_is_neither_placed_nor_accessed_is_moved_to_slow_memory() -> None:
    profile = placed(fast=[ACTIVATION, SCRATCH, PARAMETER], slow=[GRADIENT])
    accesses = profile.accesses[profile.accesses["tensor"] != STATE]
    profile = replace(profile, accesses=accesses)
    policy = Slow()
    plan = planned(policy, profile, two_tiers(), 7 * PAGE)
    assert not policy.asked
    assert plan.initial[["tensor", "tier", "offset", "bytes"]].tolist() == [
        (STATE, 1, 0, 4 * PAGE),
        (PARAMETER, 0, 4 * PAGE, 2 * PAGE),
    ]
    assert plan.initial_tier[STATE] == 1
    assert plan.reasons[STATE] == "slow: not accessed in the step"
    verify(plan, profile, 7 * PAGE)


def test_the_kernel_s_placement_keeps_its_prediction() -> None:
    profile = placed(fast=[PARAMETER])
    plan = planned(
        Baseline("first-touch", None, "where the kernel puts it"), profile, two_tiers(), 0
    )
    verify(plan, profile, None)
    assert plan.predicted.step_ns > 0


def test_a_placed_tensor_that_outlives_its_step_is_reported() -> None:
    profile = placed(fast=[ACTIVATION])
    profile.tensors["kind"][ACTIVATION] = Kind.PERSISTENT
    plan = planned(Slow(), profile, two_tiers(), 7 * PAGE)
    verify(plan, profile, 7 * PAGE)
    assert plan.notes == ("1 tensor cannot be placed, because its address changes in each step",)


def test_on_paged_tiers_slow_births_are_evicted_and_dropped() -> None:
    profile, tiers = placed(slow=[ACTIVATION], fast=[GRADIENT]), preset_tiers("nvme", 1)
    plan = planned(Slow(), profile, tiers, 7 * PAGE)
    verify(plan, profile, 7 * PAGE)
    region = next(one for one in plan.layout.regions if one.name == "placed slow")
    evicted = plan.moves[plan.moves["offset"] == region.offset]
    assert evicted[["boundary", "tier", "bytes"]].tolist() == [(1, 1, 2 * PAGE)]
    flags = plan.layout.slots["flags"]
    assert flags[0] == SLOT_PLANNED | SLOT_DROP
    assert flags[2] == SLOT_PLANNED
