# SPDX-License-Identifier: Apache-2.0
"""The number of fast pages to which the simulator and emulated tiers limit a plan."""

from __future__ import annotations

import pytest

from sentineld.plan.policy import fast_pages
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers


@pytest.mark.parametrize("name", ["sentinel", "slow-only", "first-touch"])
def test_the_fast_tier_has_the_whole_pages_of_the_budget(name: str) -> None:
    plan = policy(name).plan(toy_profile(), two_tiers(), 8 * PAGE + 5)
    assert fast_pages(policy(name), plan, PAGE) == 8


def test_a_baseline_with_its_heap_in_fast_memory_has_no_limit() -> None:
    plan = policy("fast-only").plan(toy_profile(), two_tiers(), 8 * PAGE)
    assert fast_pages(policy("fast-only"), plan, PAGE) is None
    # If the plan came from a policy whose plans stay within the budget, the limit would be the
    # budget.
    assert fast_pages(policy("sentinel"), plan, PAGE) == 8
