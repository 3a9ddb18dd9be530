# SPDX-License-Identifier: Apache-2.0
"""Planning in a child process."""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.planner.child import plan_in_child, spare_in_child
from sentineld.policies.registry import policy
from tests.unit.plan.toys import LARGE, PAGE, large_profile, two_tiers

BUDGET = 7 * LARGE * PAGE


def test_the_child_answers_and_reports_errors() -> None:
    profile, tiers = large_profile(), two_tiers()
    plan = plan_in_child("fast-only", profile, tiers, BUDGET, 60)
    assert plan.policy == "fast-only"
    with pytest.raises(SentinelError, match="no policy is named 'nonsense'"):
        plan_in_child("nonsense", profile, tiers, BUDGET, 60)
    with pytest.raises(SentinelError, match="planning took over"):
        plan_in_child("auto", profile, tiers, BUDGET, 0.001)


def test_a_plan_without_moves_needs_no_spare() -> None:

    live = policy("fast-only").plan(large_profile(), two_tiers(), BUDGET)
    assert not len(live.moves)
    assert spare_in_child("auto", large_profile(), two_tiers(), BUDGET, live, 60) is None
