# SPDX-License-Identifier: Apache-2.0
"""The baselines put everything on one tier, or leave the placement to the kernel."""

from __future__ import annotations

import pytest

from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers
from tests.unit.policies.network import training_step


@pytest.mark.parametrize(("name", "tier", "share"), [("fast-only", 0, 1.0), ("slow-only", 1, 0.0)])
def test_baselines_put_everything_on_one_tier(name: str, tier: int, share: float) -> None:
    training = training_step()
    plan = policy(name).plan(training, two_tiers(), 0)
    verify(plan, training, None)
    assert not policy(name).charges_budget
    assert {region.tier for region in plan.layout.regions} == {tier}
    assert set(plan.initial["tier"].tolist()) == {tier}
    assert not len(plan.moves)
    assert plan.predicted.fast_share == share


def test_first_touch_leaves_placement_to_the_kernel() -> None:
    training = training_step()
    plan = policy("first-touch").plan(training, two_tiers(), training.peak_bytes // 5)
    verify(plan, training, None)
    assert {region.tier for region in plan.layout.regions} == {None}
    assert plan.layout.heap_tier is None
    assert not len(plan.initial)


@pytest.mark.parametrize(
    ("pages", "share"),
    [
        # Fast memory is filled in this order: state 4 pages, parameter 2, activation 2, scratch 1,
        # gradient 2. The pages have 19 accesses in all: 1 for each page of state and scratch, 2 for
        # each page of activation and gradient, 3 for each page of the parameter.
        (0, 0.0),
        (2, 2 / 19),
        (6, 10 / 19),
        (8, 14 / 19),
        (9, 15 / 19),
        (11, 1.0),
        (99, 1.0),
    ],
)
def test_first_touch_fills_fast_memory_in_the_order_of_births(pages: int, share: float) -> None:
    plan = policy("first-touch").plan(toy_profile(), two_tiers(), pages * PAGE)
    assert plan.predicted.fast_share == pytest.approx(share)
    assert plan.predicted.peak_fast_bytes == min(pages, 11) * PAGE
    assert plan.predicted.promoted_bytes == plan.predicted.demoted_bytes == 0
