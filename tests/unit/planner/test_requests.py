# SPDX-License-Identifier: Apache-2.0
"""Requests to the planning child process."""

from __future__ import annotations

import math
import pickle

import pytest

from sentineld.planner import requests
from sentineld.planner.requests import (
    BoundRequest,
    PlanRequest,
    ReplanRequest,
    SpareRequest,
    StepTimesRequest,
)
from sentineld.policies.bounds.fast_share import fast_share_bound
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from sentineld.simulate.steady import steady_step_ns
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, two_tiers
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.policies.tiering import paged_tiers

BUDGET = 7 * LARGE * PAGE


def test_a_pickled_request_gives_the_same_answer() -> None:
    profile, tiers = large_profile(), two_tiers()
    plan = pickle.loads(pickle.dumps(PlanRequest("auto", profile, tiers, BUDGET))).answer()
    assert plan.predicted == policy("auto").plan(profile, tiers, BUDGET).predicted
    bound = pickle.loads(pickle.dumps(BoundRequest(profile, tiers, BUDGET))).answer()
    assert bound == fast_share_bound(profile, BUDGET, tiers.migration_bytes_per_s)
    live = large_plan()
    found = pickle.loads(pickle.dumps(ReplanRequest("auto", profile, tiers, BUDGET, live))).answer()
    assert found is None or found.policy == "auto"
    spare = pickle.loads(pickle.dumps(SpareRequest("auto", profile, tiers, BUDGET, live))).answer()
    assert spare is None or spare.up_to_bytes_per_s < tiers.migration_bytes_per_s


def test_step_times_are_those_of_plans_until_one_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, tiers = large_profile(), two_tiers()
    budgets = 1, BUDGET, profile.peak_bytes, 2 * profile.peak_bytes
    times = StepTimesRequest("auto", profile, tiers, budgets, 1.001 * profile.step_ns).answer()
    step_ns = PlanRequest("auto", profile, tiers, BUDGET).answer().predicted.step_ns
    assert times == (math.inf, step_ns)
    # After STEP_TIMES_S, the request returns the times of the budgets that it has tried.
    monkeypatch.setattr(requests, "STEP_TIMES_S", 0.0)
    assert StepTimesRequest("auto", profile, tiers, budgets, 0.0).answer() == times[:1]


def test_on_paged_tiers_the_prediction_is_the_simulated_step() -> None:
    # Memory has room for one of two tensors, which are used alternately. The file is too slow to
    # swap the tensors in time.
    profile, tiers = lap(6, Life(64, (0,)), Life(64, (3,))), paged_tiers(10.0, 20.0)
    budget = 64 * PAGE
    plan = PlanRequest("g10+slow", profile, tiers, budget).answer()
    found = simulate(profile, policy("g10+slow"), tiers, budget, plan=plan)
    assert plan.predicted.step_ns / 1e9 == pytest.approx(found.step_seconds)
    plan = PlanRequest("auto", profile, tiers, budget).answer()
    assert plan.predicted.step_ns == int(steady_step_ns(plan, profile, tiers))
    assert plan.predicted.step_ns >= bound_seconds(profile, tiers, budget) * 1e9 - 1
