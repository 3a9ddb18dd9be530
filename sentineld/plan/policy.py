# SPDX-License-Identifier: Apache-2.0
"""What a policy is."""

from __future__ import annotations

from typing import Protocol

from sentineld.plan.model import Plan
from sentineld.profile.model import Profile
from sentineld.tiers import Tiers


class Policy(Protocol):
    """Makes a plan from a profile; a pure function of its arguments."""

    name: str
    charges_budget: bool
    """Whether its plans keep to the budget; the baselines don't."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step. budget_bytes: fast memory for tensor pages of heap and arena.

        Raises SentinelError if there is no plan within the budget.
        """
