# SPDX-License-Identifier: Apache-2.0
"""Planning: from a session's profile to a verified plan and a spare plan, in child processes."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.machine.substrate import Substrate
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.division import Terms
from sentineld.plan.fault_latency import fault_latency_of
from sentineld.plan.slack import with_slack
from sentineld.profile.sizes import Sizes
from sentineld.session.live.shapes import Planned, Shape


@dataclass(frozen=True)
class Goal:
    """Budget and policy of an attach."""

    fast: FastBudget
    policy: str
    terms: Terms | None = None
    """The session's terms for the shared budget; None: `fast` is a budget of the session's own.
    With terms, `fast` is the session's share in bytes, as soon as Attachment.admit() has set it."""

    def __str__(self) -> str:
        return f"policy {self.policy}, fast {self.fast_text}"

    @property
    def fast_text(self) -> str:
        """The budget as text: as given to `attach`, or "shared"."""
        return str(self.fast) if self.terms is None else "shared"

    def with_share(self, share_bytes: int) -> Goal:
        """This goal, but with another share of the shared budget."""
        return replace(self, fast=FastBudget(None, share_bytes))


@dataclass(frozen=True)
class PlanInput:
    """The input of planning, besides the goal."""

    shape: Shape
    profile: Profile
    charged: Profile  # see Planned
    tiers: Tiers  # the tiers, with the figures that the plan should assume
    unmanaged_bytes: int  # tensor bytes outside heap and arena; charged to the budget, too
    sizes: Sizes | None = None  # the sizes that the plan must fit; None: only the profile's sizes

    def tensor_bytes(self, budget_bytes: int, substrate: Substrate) -> int:
        """The part of a session's budget that remains for planned tensors."""
        return budget_bytes - self.unmanaged_bytes - substrate.reserve_bytes(budget_bytes)


def planned_for(goal: Goal, given: PlanInput, machine: Machine, link: ShimLink) -> Planned:
    """Make a plan for the goal; blocks while the planning processes run. Raises SentinelError."""
    budget_bytes = goal.fast.resolve(given.profile.peak_bytes)
    # Only check the budget here: the session's thread reserves it when the session enters the plan.
    machine.budgets_of(link).require(link, budget_bytes)
    arguments = given.profile, given.tiers, given.tensor_bytes(budget_bytes, machine.substrate)
    started_s = time.monotonic()
    plan = machine.planners.plan(link.uid, goal.policy, *arguments)
    duration_s = time.monotonic() - started_s
    if given.sizes is not None:
        vary = given.sizes.vary
        note = (
            f"The sizes of {np.count_nonzero(vary)} of {len(vary)} allocations vary."
            " Their slots have the largest sizes that were seen, and the predictions are for a step"
            " of these sizes."
        )
        layout = with_slack(plan.layout, given.sizes)
        plan = replace(plan, layout=layout, notes=(*plan.notes, note))
    return Planned(
        given.shape,
        given.profile,
        given.charged,
        plan,
        budget_bytes,
        duration_s,
        given.tiers.migration_bytes_per_s,
        # The spare plan is made in advance, because it is needed as soon as the first step under
        # the plan shows that moves do not reach the assumed bandwidth. A plan for varying sizes
        # gets no spare plan: it is never corrected, because its times and moves vary, too.
        machine.planners.spare(link.uid, *arguments, plan) if given.sizes is None else None,
        fault_latency_ns=fault_latency_of(given.tiers),
    )
