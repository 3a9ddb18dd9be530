# SPDX-License-Identifier: Apache-2.0
"""Policy `auto`: the shortest step that a linear program finds, carried out page by page.

docs/policies.md says what it does and what it reaches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.plan import MOVE_DTYPE, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import Items, lasting, transient
from sentineld.plan.keep import keep
from sentineld.plan.lives import Lives
from sentineld.plan.predict import initial_tiers, predicted, unpredicted
from sentineld.plan.reasons import reasons
from sentineld.plan.residency import crowded_pages, free_pages, places, residency
from sentineld.plan.schedule import births_waits, initial_ranges, planned_moves
from sentineld.plan.timed import births_ns
from sentineld.policies.auto.parts import levels, parts, residency_of
from sentineld.policies.auto.places import Births, lay_out
from sentineld.policies.lp.groups import Groups, groups_of, most_costly
from sentineld.policies.lp.problem import Limits, changes_of
from sentineld.policies.lp.program import solve
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.simulate.steady import steady_step_ns

Attempts = tuple[tuple[int, int], ...]

ATTEMPTS: Attempts = ((3000, 120_000), (600, 100_000))
"""(groups of tensors at most, iterations of the solver): what costs less than these groups stays
slow. After the last one the plan is a fixed placement. The nine traces of tests/bench need 500 to
19,000 iterations, its step of 4004 groups needs 39,000 for 3000 of them."""

KEEP_SHARE = 0.97
"""Of fast memory that is free for a time: this much of it holds pages of the dead for those that
are born then. With all of it, what they take comes to be missed by late moves."""


@register()
class Auto:
    """The policy. move_share: of a step's time, for moves; margin_share: of the budget, kept free
    for what a plan can't foresee."""

    name = "auto"
    charges_budget = True
    move_share = 0.99
    margin_share = 0.002

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy. Raises SentinelError without scipy, and where there is nothing
        to plan by."""
        require(profile, tiers, budget_bytes)
        timing = timing_of(tiers)
        limits = Limits(
            times_ns=profile.stretches["time_ns"].astype(np.float64),
            page_ns=timing.move_ns_per_byte * profile.page_bytes / self.move_share,
            capacity_pages=int(budget_bytes * (1 - self.margin_share)) // profile.page_bytes,
        )
        groups = groups_of(profile, timing)

        def planned(within: Limits, attempts: Attempts = ATTEMPTS[:1]) -> tuple[Plan, bool]:
            return self._plan(profile, tiers, budget_bytes, groups, within, attempts)

        plan, solved = planned(limits, ATTEMPTS)
        births = births_ns(plan, profile, tiers)
        if not solved or not births.any():
            return plan
        # With a price on births and without, and then with the time that they take, in which pages
        # move. Addresses make less of the pool than the program thinks, so that the best is tried.
        plans = [plan, planned(replace(limits, times_ns=limits.times_ns + births))[0]]
        priced = replace(limits, birth_ns=timing.birth_ns_per_byte * profile.page_bytes)
        plan, solved = planned(priced)
        plans.append(plan)
        if solved:
            births = births_ns(plan, profile, tiers)
            plans.append(planned(replace(priced, times_ns=limits.times_ns + births))[0])
        return min(plans, key=lambda one: steady_step_ns(one, profile, tiers))

    def _plan(
        self,
        profile: Profile,
        tiers: Tiers,
        budget_bytes: int,
        everything: Groups,
        limits: Limits,
        attempts: Attempts,
    ) -> tuple[Plan, bool]:
        """(a plan, whether the solver found an answer). everything: all groups of the profile."""
        groups, fluid = everything, None
        for number, (most, iterations) in enumerate(attempts):
            fewer = most_costly(everything, most)
            if number and len(fewer.pages) == len(groups.pages):
                break  # the same program again
            groups, within = fewer, replace(limits, iterations_max=iterations)
            fluid = solve(groups, within, changes_of(groups), self.name)
            if fluid is not None:
                break
        if fluid is None:
            fast = _fixed(groups, limits.capacity_pages)
            notes: tuple[str, ...] = (
                "the solver found no answer within limits: a fixed placement of lasting tensors",
            )
        else:
            fast = fluid.fast_pages
            left_out = len(everything.pages) - len(groups.pages)
            notes = (
                f"{len(groups.pages)} groups of tensors; the linear program's step takes "
                f"{fluid.step_ns / 1e9:.4f} s",
                *([f"{left_out} more groups, which cost less, stay slow"] if left_out else []),
            )
        items, lives = parts(groups, levels(groups, fast))
        plan = _carried_out(self.name, profile, budget_bytes, items, lives)
        plan = replace(plan, notes=notes, initial_tier=initial_tiers(plan, profile))
        plan = replace(
            plan, predicted=predicted(plan, profile, tiers), reasons=reasons(plan, profile)
        )
        return plan, fluid is not None


def _fixed(groups: Groups, capacity_pages: int) -> Floats:
    """Without the program: lasting tensors that gain most for a page are fast all the step."""
    fast = np.zeros(groups.cost_ns.shape)
    left = max(capacity_pages, 0)
    for at in np.argsort(-groups.cost_ns.sum(axis=0), kind="stable").tolist():
        if groups.persistent[at]:
            taken = min(left, int(groups.pages[at]))
            fast[:, at] = taken
            left -= taken
    return fast


def _carried_out(
    name: str, profile: Profile, budget_bytes: int, items: Items, lives: Lives
) -> Plan:
    """Layout, moves and waits of the parts' lives."""
    tensors = len(profile.tensors)
    born = ~items.persistent & lives.fast[0]
    fast_pages = np.bincount(items.tensor[born], items.pages[born], minlength=tensors)
    wanted = residency_of(items, lives)
    astray = lives.fast[0] != (wanted.end_tier == 0)
    moved = np.zeros(tensors, np.bool_)
    moved[items.tensor[lives.moving.any(axis=0)]] = True
    limit = budget_bytes // profile.page_bytes
    free = free_pages(profile, wanted, limit) * KEEP_SHARE
    births = Births(
        rows=np.flatnonzero(transient(profile)),
        fast_pages=fast_pages.astype(np.int64),
        moved=moved,
        changing_pages=np.bincount(
            items.tensor[astray], items.pages[astray], minlength=tensors
        ).astype(np.int64),
        free=free.astype(np.int64),
    )
    plan = Plan(
        policy=name,
        budget_bytes=budget_bytes,
        layout=lay_out(profile, births),
        moves=np.zeros(0, MOVE_DTYPE),
        initial_tier=np.full(tensors, 255, np.uint8),
        reasons=(),
        predicted=unpredicted(),
    )
    space, offset = places(plan, profile)
    plan = replace(
        plan,
        moves=planned_moves(profile, items, lives, space, offset),
        initial=initial_ranges(profile, np.flatnonzero(lasting(profile)), items, lives, offset),
    )
    plan = keep(plan, profile, limit, KEEP_SHARE)
    found = residency(plan, profile)
    crowded = crowded_pages(plan, profile, found)
    waits = births_waits(plan, profile, found, crowded, fast_pages > 0, limit)
    return replace(plan, layout=replace(plan.layout, waits=waits.astype(np.int32)))
