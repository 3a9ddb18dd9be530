# SPDX-License-Identifier: Apache-2.0
"""The bound that applies to a policy."""

from __future__ import annotations

from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.policy import Policy, Rewriting
from sentineld.policies.bounds.step_time import bound_seconds


def bound_seconds_of(policy: Policy, profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
    """A lower bound on the time of a steady step under a policy, in seconds: the policy's
    bound_seconds() if the policy changes the step's work, otherwise the step-time bound. Raises
    SentinelError if the bound cannot be computed."""
    if isinstance(policy, Rewriting):
        return policy.bound_seconds(profile, tiers, budget_bytes)
    return bound_seconds(profile, tiers, budget_bytes)
