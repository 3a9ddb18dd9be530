# SPDX-License-Identifier: Apache-2.0
"""Policy `auto+recompute`: `auto` for a step that drops tensors and computes them again.

For each tensor, the step-time bound with recomputation (policies/bounds/recompute.py) weighs three
alternatives: to keep the tensor, to move it, and to drop it and compute it again. The relaxed step,
which is the optimum of the bound's linear program, may recompute a share of a tensor, or a tensor
whose inputs are dropped; a real step cannot. Therefore, one set of whole recomputations is derived
from the relaxed step for each value of SHARES. The candidates for a value's set are the
recomputations of which the relaxed step makes at least this share. The candidates that save most
time at the bound's prices (the dual values of its program) are chosen first. A candidate that
cannot be made together with the chosen ones (see compatible() in candidates.py) is left out. For
each set, `auto` plans the changed step. The set with the shortest simulated step is kept. The empty
set is tried, too, so the step is not longer than that of `auto`.

The policy shows how much time recomputation would save. It runs in the simulator only, because the
daemon cannot make a process recompute tensors: see docs/explanation/recomputation.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.placement import planned
from sentineld.plan.policy import Rewritten
from sentineld.policies.auto.policy import Auto
from sentineld.policies.bounds.recompute import RecomputeBound, recompute_bound
from sentineld.policies.recompute.candidates import (
    Recomputation,
    candidates,
    compatible,
    dropped_pages,
)
from sentineld.policies.recompute.rewrite import recomputed
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.simulate.steady import steady_step_ns

SHARES = (0.95, 0.5, 0.05)
"""A set contains only recomputations of which the relaxed step makes at least this share."""


@register()
class AutoRecompute:
    """Chooses recomputations, then plans as `auto` does."""

    name = "auto+recompute"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step whose recomputations are already chosen; see Policy. Raises SentinelError as
        `auto` does."""
        return replace(Auto().plan(profile, tiers, budget_bytes), policy=self.name)

    def rewritten(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Rewritten:
        """Choose recomputations; see Rewriting. Raises SentinelError as `auto` does."""
        require(profile, tiers, budget_bytes)
        every = candidates(profile)
        bound = recompute_bound(profile, tiers, budget_bytes, every)
        tried = []
        for chosen in ((), *_sets(every, bound)):
            changed = recomputed(profile, chosen)
            plan = planned(self, changed, tiers, budget_bytes)
            tried.append((steady_step_ns(plan, changed, tiers), chosen, changed))
        _, chosen, best = min(tried, key=lambda one: one[0])
        time_ns = sum(one.time_ns for one in chosen)
        size = format_bytes(dropped_pages(profile, chosen) * profile.page_bytes)
        return Rewritten(
            best,
            (
                f"{len(chosen)} of {len(every)} possible recomputations are made: they drop {size}"
                f" and take {time_ns / max(profile.step_ns, 1):.1%} of the all-fast step's time",
            ),
        )

    def bound_seconds(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
        """See Rewriting."""
        return recompute_bound(profile, tiers, budget_bytes, candidates(profile)).seconds


def _sets(
    every: tuple[Recomputation, ...], bound: RecomputeBound
) -> list[tuple[Recomputation, ...]]:
    """The sets of recomputations to try. No two recomputations of a set exclude each other."""
    order = np.argsort(-bound.gains_ns, kind="stable").tolist()
    found: list[tuple[Recomputation, ...]] = []
    for share in SHARES:
        chosen: list[Recomputation] = []
        for at in order:
            if bound.taken[at] >= share and compatible(chosen, every[at]):
                chosen.append(every[at])
        if chosen and tuple(chosen) not in found:
            found.append(tuple(chosen))
    return found
