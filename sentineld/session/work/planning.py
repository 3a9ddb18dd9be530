# SPDX-License-Identifier: Apache-2.0
"""From what is known of a session's steps to a verified plan and its spare, in child processes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.planner.child import plan_in_child, spare_in_child
from sentineld.session.live.shapes import Planned, Shape


@dataclass(frozen=True)
class Goal:
    """What an attach asked for."""

    fast: FastBudget
    policy: str

    def __str__(self) -> str:
        return f"policy {self.policy}, fast {self.fast}"


@dataclass(frozen=True)
class Known:
    """What there is to plan by. charged: see Planned. tiers: as they are believed to be.
    unmanaged_bytes: of tensors, which the budget has to hold beside the plan's pages."""

    shape: Shape
    profile: Profile
    charged: Profile
    tiers: Tiers
    unmanaged_bytes: int


def planned_for(goal: Goal, known: Known, machine: Machine) -> Planned:
    """Blocks while the children plan. Raises SentinelError."""
    budget_bytes = goal.fast.resolve(known.profile.peak_bytes)
    machine.require_capacity(budget_bytes)
    timeout_s = machine.config.plan_timeout_s
    asked = goal.policy, known.profile, known.tiers, budget_bytes - known.unmanaged_bytes
    started_s = time.monotonic()
    plan = plan_in_child(*asked, timeout_s)
    duration_s = time.monotonic() - started_s
    return Planned(
        known.shape,
        known.profile,
        known.charged,
        plan,
        budget_bytes,
        duration_s,
        known.tiers.migration_bytes_per_s,
        # Now: that the promised bandwidth is not there shows in the first step under the plan.
        spare_in_child(*asked, plan, timeout_s),
    )
