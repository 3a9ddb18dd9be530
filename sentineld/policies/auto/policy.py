# SPDX-License-Identifier: Apache-2.0
"""Policy `auto`: a linear program finds the shortest step; its solution becomes page moves.

docs/policies.md describes the algorithm and its results.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap, Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import Items, persistent, transient
from sentineld.plan.keep import keep
from sentineld.plan.lives import Lives
from sentineld.plan.residency import free_pages, peak_fast_pages, places, residency
from sentineld.plan.schedule import births_waits, initial_ranges, planned_moves
from sentineld.plan.timed import births_ns
from sentineld.policies.auto.parts import levels, parts, residency_of
from sentineld.policies.auto.places import Births, lay_out
from sentineld.policies.lp.clean import demoted_clean
from sentineld.policies.lp.groups import Groups, groups_of, most_costly
from sentineld.policies.lp.problem import Changes, Limits, Solution, changes_of
from sentineld.policies.lp.program import solve
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.policies.shares import page_moves_ns, usable_pages
from sentineld.simulate.steady import steady_step_ns

Attempts = tuple[tuple[int, int], ...]

ATTEMPTS: Attempts = ((3000, 120_000), (600, 100_000))
"""(limit on the number of groups of tensors, limit on the solver's iterations) of each attempt. If
there are more groups than the limit, the groups whose slow accesses cost least stay slow. If all
attempts fail, the plan is a fixed placement. The nine traces of tests/bench need 500 to 19,000
iterations. tests/bench also has a step with 4004 groups; its 3000 costliest groups need 39,000
iterations."""

CLEAN_GAIN_MIN = 1e-3
"""On paged tiers, the program is solved a second time if the first solution's step is longer than
the all-fast step by more than this share, and the solution demotes clean pages. The second program
has columns for clean pages, but only for the groups whose clean pages the first solution demotes.
With such columns for all groups, solving the program took two to twenty times as long as with
columns for these groups only (four traces of tests/bench)."""

KEEP_SHARE = 0.97
"""Dead pages may take this share of the temporarily free fast memory; each stays until the next
tensor is born on it. If dead pages took all of that memory, there would be no room for late
moves."""


@register()
class Auto:
    """Solves the linear program for up to four sets of limits and keeps the fastest plan."""

    name = "auto"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy.

        Raises SentinelError if scipy is not installed or a precondition of require() does not
        hold.
        """
        require(profile, tiers, budget_bytes)
        timing = timing_of(tiers)
        promote_ns, demote_ns = page_moves_ns(tiers, profile.page_bytes)
        limits = Limits(
            times_ns=profile.stretches["time_ns"].astype(np.float64),
            promote_ns=promote_ns,
            demote_ns=demote_ns,
            capacity_pages=usable_pages(budget_bytes, profile.page_bytes),
            hidden_ns=None if timing.overlap == Overlap.NONE else timing.costs(profile).hidden_ns,
        )
        planner = _Planner(self.name, profile, tiers, budget_bytes)
        plan, solved = planner.plan(limits, ATTEMPTS)
        births = births_ns(plan, profile, tiers)
        # On paged tiers, births take little time, because the pager gives each born page a frame
        # that is already allocated.
        if not solved or not births.any() or tiers.paged:
            return finished(plan, profile, tiers)
        # On other tiers, births take time. The program can add this time to the step's cost as a
        # price on births, and it can let moves run while births take place. But the program
        # overestimates how many dead pages are reused, because it ignores addresses. Therefore make
        # up to four plans (with and without a price on births, with and without moves in the time
        # of births), simulate all of them and keep the fastest.
        once = ATTEMPTS[:1]
        drafts = [plan]
        drafts.append(planner.plan(replace(limits, times_ns=limits.times_ns + births), once)[0])
        priced = replace(limits, birth_ns=timing.birth_ns_per_byte * profile.page_bytes)
        plan, solved = planner.plan(priced, once)
        drafts.append(plan)
        if solved:
            births = births_ns(plan, profile, tiers)
            longer = replace(priced, times_ns=limits.times_ns + births)
            drafts.append(planner.plan(longer, once)[0])
        best = min(drafts, key=lambda one: steady_step_ns(one, profile, tiers))
        return finished(best, profile, tiers)


class _Planner:
    """Makes plans of one step for different limits. The plans' common data is derived only once."""

    def __init__(self, name: str, profile: Profile, tiers: Tiers, budget_bytes: int) -> None:
        self._name, self._profile, self._budget_bytes = name, profile, budget_bytes
        self._paged = tiers.paged
        self._groups = groups_of(profile, timing_of(tiers))
        self._transient = np.flatnonzero(transient(profile))
        self._persistent = np.flatnonzero(persistent(profile))
        # Key: maximum number of groups. Value: the costliest groups, up to this number, and the
        # positions at which each of them may change its tier.
        self._problems: dict[int, tuple[Groups, Changes]] = {}

    def plan(self, limits: Limits, attempts: Attempts) -> tuple[Plan, bool]:
        """(a plan without prediction or reasons, whether the solver found an optimum)."""
        groups, solution = self._solve(limits, attempts)
        if solution is None:
            fast = _fixed(groups, limits.capacity_pages)
            notes: tuple[str, ...] = (
                "the solver found no answer within limits, so only persistent tensors are fast",
            )
        else:
            fast = solution.fast_pages
            left_out = len(self._groups.pages) - len(groups.pages)
            notes = (
                f"{len(groups.pages)} groups of tensors; the linear program's step takes "
                f"{solution.step_ns / 1e9:.4f} s",
                *([f"{left_out} more groups, which cost less, stay slow"] if left_out else []),
            )
        items, lives = parts(groups, levels(groups, fast))
        return self._carried_out(items, lives, notes), solution is not None

    def _solve(self, limits: Limits, attempts: Attempts) -> tuple[Groups, Solution | None]:
        """(groups of the last attempt, its solution or None)."""
        groups = self._groups
        for number, (most, iterations) in enumerate(attempts):
            fewer, changes = self._problem(most)
            if number and len(fewer.pages) == len(groups.pages):
                break  # the program would be the same as in the previous attempt
            groups, within = fewer, replace(limits, iterations_max=iterations)
            solution = solve(groups, within, changes, self._name)
            if solution is not None:
                clean = demoted_clean(groups, solution.fast_pages)
                if clean.any() and solution.step_ns > limits.times_ns.sum() * (1 + CLEAN_GAIN_MIN):
                    return groups, solve(groups, within, changes, self._name, clean) or solution
                return groups, solution
        return groups, None

    def _problem(self, most: int) -> tuple[Groups, Changes]:
        if most not in self._problems:
            groups = most_costly(self._groups, most)
            self._problems[most] = groups, changes_of(groups)
        return self._problems[most]

    def _carried_out(self, items: Items, lives: Lives, notes: tuple[str, ...]) -> Plan:
        """Make the layout, moves and waits that carry out the lives of the parts (parts.py)."""
        profile, tensors = self._profile, len(self._profile.tensors)
        born_fast = ~items.persistent & lives.fast[0]
        fast_pages = np.bincount(
            items.tensor[born_fast], items.pages[born_fast], minlength=tensors
        ).astype(np.int64)
        intended = residency_of(items, lives)
        changes_tier = lives.fast[0] != (intended.end_tier == 0)
        changing_pages = np.bincount(
            items.tensor[changes_tier], items.pages[changes_tier], minlength=tensors
        ).astype(np.int64)
        moved = np.zeros(tensors, np.bool_)
        moved[items.tensor[lives.moving.any(axis=0)]] = True
        limit = self._budget_bytes // profile.page_bytes
        free = free_pages(profile, intended, limit) * KEEP_SHARE
        births = Births(
            rows=self._transient,
            fast_pages=fast_pages,
            moved=moved,
            changing_pages=changing_pages,
            free=free.astype(np.int64),
        )
        plan = draft(self._name, profile, self._budget_bytes, lay_out(profile, births), notes)
        space, offset = places(plan, profile)
        plan = replace(
            plan,
            moves=planned_moves(profile, items, lives, space, offset),
            initial=initial_ranges(profile, self._persistent, items, lives, offset),
        )
        plan = keep(plan, profile, limit, KEEP_SHARE, keeps_slow=not self._paged)
        found = residency(plan, profile)
        crowded = peak_fast_pages(plan, profile, found)
        waits = births_waits(plan, profile, found, crowded, fast_pages > 0, limit)
        return replace(plan, layout=replace(plan.layout, waits=waits.astype(np.int32)))


def _fixed(groups: Groups, capacity_pages: int) -> Floats:
    """A substitute for Solution.fast_pages if the solver finds no solution: the persistent tensors
    that save most time per fast page are fast for the whole step, as far as they fit."""
    fast = np.zeros(groups.cost_ns.shape)
    left = max(capacity_pages, 0)
    for at in np.argsort(-groups.cost_ns.sum(axis=0), kind="stable").tolist():
        if groups.persistent[at]:
            taken = min(left, int(groups.pages[at]))
            fast[:, at] = taken
            left -= taken
    return fast
