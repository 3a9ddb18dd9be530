# SPDX-License-Identifier: Apache-2.0
"""Requests to the planning child process."""

from __future__ import annotations

import pickle

from sentineld.planner.requests import BoundRequest, PlanRequest, ReplanRequest, SpareRequest
from sentineld.policies.bounds.fast_share import fast_share_bound
from sentineld.policies.registry import policy
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, two_tiers

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
