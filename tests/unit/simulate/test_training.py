# SPDX-License-Identifier: Apache-2.0
"""The phases of a training with large_profile(): steps by first touch, then under a policy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sentineld.plan.policy import Hardware, MoveRequest, Observation
from sentineld.policies.registry import policy
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.replay import Step
from sentineld.simulate.training import PROFILE_STEPS, WARM_UP_STEPS, PolicyRun, Training
from sentineld.simulate.world import Counts
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.tiering import tiers

SLOW_PAGE_NS = (0.375 + 0.75 / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written, as in large_profile().
With the bandwidths of tiers(), a slow byte takes 1/2 - 1/8 = 0.375 ns more to read and 1 - 1/4 =
0.75 ns more to write."""
EVERYTHING = 20 * LARGE * PAGE


def training(
    name: str, budget: int = EVERYTHING, disturbance: Disturbance | None = None, steps: int = 9
) -> Training:
    profile, chosen = large_profile(), policy(name)
    plan = chosen.plan(profile, tiers(1000.0), budget)
    return Training(
        profile, chosen, plan, tiers(1000.0), budget, disturbance or Disturbance(), steps
    )


class Still:
    """A reactor (see plan/policy.py) that moves nothing."""

    interval_ns = 1e9

    def tick(self, observation: Observation) -> Sequence[MoveRequest]:
        return []


def step(ns: float) -> Step:
    return Step(ns, 0.0, Counts(), np.zeros(4))


def test_interference_slows_moves() -> None:
    assert training("static").page_ns == pytest.approx((1e6, 1e6))
    shared = training("static", disturbance=Disturbance(interference=0.75))
    assert shared.page_ns == pytest.approx((4e6, 4e6))


def test_the_steps_before_the_plan_are_by_first_touch() -> None:
    steps, world = training("sentinel").by_first_touch()
    assert len(steps) == WARM_UP_STEPS + PROFILE_STEPS == 5
    assert [one.ns for one in steps] == [4e9] * 5
    assert world.now_ns == 5 * 4e9
    # In units of 64 pages: the budget is two units, and the state is born first, so two of its four
    # units are fast. Its other two units and all other tensors are slow. Of the step's 19 accesses
    # to units (see toy_profile()), the two fast units serve one each.
    steps, world = training("first-touch", 2 * LARGE * PAGE).by_first_touch()
    assert world.fast_pages == 2 * LARGE
    assert steps[-1].slow_ns == pytest.approx((19 - 2) * LARGE * SLOW_PAGE_NS, rel=0.01)


def test_the_budget_is_the_capacity_unless_the_policy_ignores_it() -> None:
    assert training("sentinel", 8 * LARGE * PAGE).replay().world.capacity_pages == 8 * LARGE
    assert training("fast-only", 0).replay().world.capacity_pages is None


def test_noise_differs_between_the_phases_and_repeats_between_the_runs() -> None:
    one = training("static", disturbance=Disturbance(noise=0.3))
    (before, world), again = one.by_first_touch(), one.by_first_touch()[0]
    assert [step.ns for step in before] == [step.ns for step in again]
    runs = [one.reacting(world, Still(), "") for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    assert runs[0].steps[0].ns != before[0].ns


def test_half_of_the_steps_of_a_reactive_policy_settle() -> None:
    one = training("tpp", 8 * LARGE * PAGE)
    _, world = one.by_first_touch()
    found = one.reacting(world, Still(), "an interval")
    assert (len(found.settling), len(found.steady)) == (4, 5)
    assert (found.repeats, found.notes) == (False, ("an interval",))
    assert one.reacting(world, Still(), "").notes == ()


def test_hardware_adds_its_cost_to_the_stretches() -> None:
    one = training("memory-mode", LARGE * PAGE)
    assert isinstance(one.policy, Hardware)
    found = one.in_hardware(one.policy)
    (steady,) = found.steady
    assert found.settling == ()
    assert found.repeats
    cost = one.policy.steady_step(one.plan, one.profile, one.tiers, one.budget_bytes)
    assert steady.ns == pytest.approx(4e9 + cost.extra_ns)
    assert steady.counts.promoted_pages == cost.filled_bytes // PAGE > 0
    assert steady.counts.peak_pages == LARGE
    skewed = training("memory-mode", LARGE * PAGE, Disturbance(skew=0.3))
    assert isinstance(skewed.policy, Hardware)
    (other,) = skewed.in_hardware(skewed.policy).steady
    factors = skewed.disturbance.skew_factors(4)
    assert other.ns == pytest.approx(1e9 * factors.sum() + cost.extra_ns)


def test_a_run_s_time_is_the_mean_of_its_steady_steps() -> None:
    settling, steady, trial = (step(9.0),), (step(2.0), step(4.0)), (step(7.0),)
    found = PolicyRun(settling, steady, True, trial)
    assert found.step_ns == 3.0
    assert [one.ns for one in found.steps] == [7.0, 9.0, 2.0, 4.0]
