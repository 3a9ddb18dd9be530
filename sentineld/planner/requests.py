# SPDX-License-Identifier: Apache-2.0
"""Requests to the planning child process, one class for each kind.

A request is pickled and sent to the child. It contains everything that its answer depends on.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.check import verify
from sentineld.plan.placement import planned
from sentineld.plan.spare import Spare
from sentineld.policies.bounds.fast_share import FastShareBound, fast_share_bound
from sentineld.policies.registry import policy
from sentineld.simulate.loop import plan_again, spare_plan
from sentineld.simulate.steady import steady_step_ns

Answer = TypeVar("Answer", covariant=True)

STEP_TIMES_S = 10.0
"""After this time, StepTimesRequest tries no further budget, because other requests may wait for
their turn (turns.py)."""


class Request(Protocol[Answer]):
    """A request; the child calls answer() and sends the result back."""

    def answer(self) -> Answer:
        """Compute the answer. Raises SentinelError if this fails."""


@dataclass(frozen=True)
class PlanRequest:
    """Make a plan and verify it."""

    policy_name: str
    profile: Profile
    tiers: Tiers
    budget_bytes: int

    def answer(self) -> Plan:
        """The verified plan."""
        chosen = policy(self.policy_name)
        plan = planned(chosen, self.profile, self.tiers, self.budget_bytes)
        verify(plan, self.profile, self.budget_bytes if chosen.charges_budget else None)
        return _with_steady_step(plan, self.profile, self.tiers)


@dataclass(frozen=True)
class StepTimesRequest:
    """Predict the time of a step for several budgets, by making a plan for each."""

    policy_name: str
    profile: Profile
    tiers: Tiers
    budgets_bytes: tuple[int, ...]  # ascending
    enough_ns: float  # no further budget is tried after a step that is shorter than this

    def answer(self) -> tuple[float, ...]:
        """The predicted time of a step in ns for each budget that was tried, in order; infinite if
        there is no plan. At least one budget is tried. After STEP_TIMES_S, no further budget is
        tried."""
        began_s = time.monotonic()
        times: list[float] = []
        for budget_bytes in self.budgets_bytes:
            request = PlanRequest(self.policy_name, self.profile, self.tiers, budget_bytes)
            try:
                times.append(request.answer().predicted.step_ns)
            except SentinelError:
                times.append(math.inf)
            if times[-1] < self.enough_ns or time.monotonic() > began_s + STEP_TIMES_S:
                break
        return tuple(times)


@dataclass(frozen=True)
class BoundRequest:
    """Compute the fast-share bound."""

    profile: Profile
    tiers: Tiers
    budget_bytes: int

    def answer(self) -> FastShareBound:
        """The bound for the budget and the tiers' migration bandwidth."""
        return fast_share_bound(self.profile, self.budget_bytes, self.tiers.migration_bytes_per_s)


@dataclass(frozen=True)
class ReplanRequest:
    """Plan again for a corrected profile or corrected tiers."""

    policy_name: str
    profile: Profile
    tiers: Tiers
    budget_bytes: int
    live: Plan

    def answer(self) -> Plan | None:
        """The new plan; None if its steps would not be faster than the live plan's by more than
        GAIN_MIN (simulate/loop.py)."""
        plan = plan_again(
            policy(self.policy_name), self.profile, self.tiers, self.budget_bytes, self.live
        )
        return None if plan is None else _with_steady_step(plan, self.profile, self.tiers)


@dataclass(frozen=True)
class SpareRequest:
    """Make a spare plan for the live plan."""

    policy_name: str
    profile: Profile
    tiers: Tiers
    budget_bytes: int
    live: Plan

    def answer(self) -> Spare | None:
        """The spare plan; None if the policy cannot make it, or if it would not be faster than the
        live plan at any of the bandwidths tried (SPARE_TRIED_SHARES in simulate/loop.py)."""
        return spare_plan(
            policy(self.policy_name), self.profile, self.tiers, self.budget_bytes, self.live
        )


def _with_steady_step(plan: Plan, profile: Profile, tiers: Tiers) -> Plan:
    """Return the plan. On paged tiers, replace its predicted step time with the time of a simulated
    step.

    On paged tiers, a plan may have more moves than a step has time for, and faults delay moves.
    The simulator models both effects; a policy's own prediction does not.
    """
    if not tiers.paged:
        return plan
    step_ns = int(steady_step_ns(plan, profile, tiers))
    return replace(plan, predicted=replace(plan.predicted, step_ns=step_ns))
