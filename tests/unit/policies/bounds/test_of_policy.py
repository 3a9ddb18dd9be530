# SPDX-License-Identifier: Apache-2.0
"""Each policy is compared with the bound that applies to it."""

from __future__ import annotations

from sentineld.policies.bounds.of_policy import bound_seconds_of
from sentineld.policies.bounds.recompute import recompute_bound
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.recompute.candidates import candidates
from sentineld.policies.registry import policy
from tests.unit.policies.recompute.toys import UNIT, layered_profile
from tests.unit.policies.tiering import tiers


def test_a_policy_that_recomputes_has_a_bound_of_its_own() -> None:
    profile, found, budget = layered_profile(), tiers(0.001), 4 * UNIT
    plain, own = (
        bound_seconds_of(policy(name), profile, found, budget)
        for name in ("auto", "auto+recompute")
    )
    assert plain == bound_seconds(profile, found, budget)
    assert own == recompute_bound(profile, found, budget, candidates(profile)).seconds
    assert own < plain
