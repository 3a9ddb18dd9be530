# SPDX-License-Identifier: Apache-2.0
"""Policy `autotm`: an integer program chooses the tier of each tensor for each of its uses.

Based on AutoTM (Hildebrand et al., ASPLOS 2020; its artifact's asynchronous mode): for every use of
a tensor, a binary variable says whether the tensor is in DRAM. Between two uses, a transfer may
move the tensor. The transfer overlaps with operators near a use (at most 15 operators away in the
artifact). The step time is minimised subject to the DRAM limit at every operator. A tensor is never
divided between the tiers.

The solver HiGHS first solves the relaxation, which may divide tensors. It then solves the integer
program for the divided tensors, to within GAP of the optimum or until SEARCH_S seconds have passed.
If the plan needs more memory than the limit, the program is solved again with a lower limit, as in
the original.

Adapted to memory tiers: stretches replace operators, and the timing model replaces profiled
kernels. The step is circular, and persistent tensors are planned, too. Left out: operator
implementations that depend on the tier of the inputs (none exist here); clean copies, which make a
second demotion free (here, a page is on one tier at a time); synchronous transfers (here, nothing
waits for promotions). The policy has no parameter to sweep. If accesses do not overlap with other
work, the relaxation's step time is a lower bound on the policy's step time; the plan's note states
this bound.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Integers, Table
from sentineld.model.plan import MOVE_DTYPE, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.plan.layout import Area, build_layout, slow_born_areas
from sentineld.plan.residency import peak_fast_pages, places, residency
from sentineld.plan.schedule import births_waits, coalesce, deaths
from sentineld.policies.registry import register
from sentineld.policies.rivals.autotm_program import Answer, Problem, problem_of, solve
from sentineld.policies.rivals.swapping import in_order, tier_ranges
from sentineld.policies.shares import page_moves_ns, usable_pages

GAP = 1e-3
RELAXATION_S, SEARCH_S = 60.0, 15.0
"""Time limits for the relaxation and for the search. If the relaxation is not solved in time,
everything stays slow. If the search finds no solution, the tensors that the relaxation divides stay
slow."""

TRIES = 4
"""Limit on the number of times that the program is solved. If a plan exceeds the memory limit, the
room for the next solution is reduced by the excess. If no solution fits, all tensors stay slow."""


@register()
class AutoTM:
    """Policy `autotm`; see the module's docstring."""

    name = "autotm"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy.

        Raises SentinelError if scipy is not installed, the budget is less than a page, or the
        migration bandwidth is 0.
        """
        timing = timing_of(tiers)
        page = profile.page_bytes
        page_ns = page_moves_ns(tiers, page)
        if budget_bytes < page or not np.isfinite(page_ns[0]):
            raise SentinelError(
                "failed",
                f"infeasible: {format_bytes(max(budget_bytes, 0))} of fast memory at "
                f"{tiers.migration_bytes_per_s:g} bytes per second",
                "give the process more fast memory, or set tiers.migration_bytes_per_s",
            )
        problem = problem_of(profile, timing.extra_ns(profile), sum(page_ns))
        limit = usable_pages(budget_bytes, page)
        room = limit
        for _ in range(TRIES):
            answer = solve(problem, max(room, 0), page_ns, GAP, (RELAXATION_S, SEARCH_S))
            plan = _plan(self.name, problem, answer, budget_bytes)
            used = peak_fast_pages(plan, profile, residency(plan, profile))
            over = int(used.max(initial=0)) - limit
            if over <= 0:
                break
            room -= over
        else:
            answer = _all_slow(answer)
            plan = _plan(self.name, problem, answer, budget_bytes)
        found = residency(plan, profile)
        charged = peak_fast_pages(plan, profile, found)
        waits = births_waits(plan, profile, found, charged, transient(profile), limit)
        plan = replace(plan, layout=replace(plan.layout, waits=waits.astype(np.int32)))
        return finished(plan, profile, tiers)


def _all_slow(answer: Answer) -> Answer:
    """The answer in which no tensor is ever fast."""
    return replace(
        answer,
        fast=(False,) * len(answer.fast),
        out=tuple(np.zeros_like(parts) for parts in answer.out),
        back=tuple(np.zeros_like(parts) for parts in answer.back),
        note=f"none of {TRIES} solutions fits: all tensors stay slow",
    )


def _plan(name: str, problem: Problem, answer: Answer, budget_bytes: int) -> Plan:
    """Convert an answer to a plan without waits."""
    profile = problem.profile
    tensors = len(profile.tensors)
    born_fast, moved = np.zeros(tensors, np.bool_), np.zeros(tensors, np.bool_)
    for span, fast in zip(problem.spans, answer.fast, strict=True):
        if span.since == 0:
            born_fast[span.tensor] = fast
    for gap, out, back in zip(problem.gaps, answer.out, answer.back, strict=True):
        moved[gap.tensor] |= bool(out.any() or back.any())
    placed = transient(profile)
    fast_rows, slow_rows = np.flatnonzero(placed & born_fast), np.flatnonzero(placed & ~born_fast)
    areas = [
        Area("fast-born", 0, fast_rows, np.ones(len(fast_rows), np.bool_)),
        *slow_born_areas(slow_rows, moved),
    ]
    bound_s = (profile.step_ns + answer.least_ns) / 1e9
    waits = np.full(profile.stretch_count, -1, np.int64)
    layout = build_layout(profile, areas, waits, heap_tier=1)
    plan = draft(
        name,
        profile,
        budget_bytes,
        layout,
        (f"{answer.note}; the relaxation's step takes {bound_s:.4f} s",),
    )
    space, offset = places(plan, profile)
    return replace(
        plan,
        moves=_moves(problem, answer, space, offset),
        initial=_initial(problem, answer, offset),
    )


def _moves(problem: Problem, answer: Answer, space: Integers, offset: Integers) -> Table:
    profile, rows = problem.profile, []
    page, count = profile.page_bytes, profile.stretch_count
    for gap, out, back in zip(problem.gaps, answer.out, answer.back, strict=True):
        birth, tensor = int(problem.births[gap.tensor]), gap.tensor
        for tier, positions, parts in ((1, gap.out, out), (0, gap.back, back)):
            first = 0
            for at, pages in zip(positions, parts.tolist(), strict=True):
                if not pages:
                    continue
                due = at + 1 if tier else gap.back[-1] + 1
                begin = int(offset[tensor]) + first * page
                boundary, deadline = (birth + at) % count, (birth + due) % count
                size = pages * page
                rows.append((boundary, deadline, tensor, space[tensor], tier, begin, size))
                first += pages
    return in_order(coalesce(np.array(rows, MOVE_DTYPE), deaths(problem.profile)), count)


def _initial(problem: Problem, answer: Answer, offset: Integers) -> Table:
    """Page ranges of persistent tensors and their tiers at boundary 0."""
    profile = problem.profile
    page, count, sizes = profile.page_bytes, profile.stretch_count, tensor_pages(profile)
    fast = {
        int(row): np.zeros(int(sizes[row]), np.bool_) for row in np.flatnonzero(persistent(profile))
    }
    for span, decided in zip(problem.spans, answer.fast, strict=True):
        # For spans and gaps, see autotm_program.py. If boundary 0 lies in a span, the initial tier
        # is that of the span. If boundary 0 lies in a gap, the initial tier is that of the span
        # before the gap, except for the pages that are moved in this gap before boundary 0.
        if span.tensor in fast and (span.since == 0 or span.until >= count):
            fast[span.tensor][:] = decided
    for gap, out, back in zip(problem.gaps, answer.out, answer.back, strict=True):
        if gap.tensor not in fast or not gap.out[0] <= count <= gap.back[-1]:
            continue
        pages = np.full(len(fast[gap.tensor]), answer.fast[gap.before])
        for becomes, positions, parts in ((False, gap.out, out), (True, gap.back, back)):
            first = 0
            for at, part in zip(positions, parts.tolist(), strict=True):
                if at < count:
                    pages[first : first + part] = becomes
                first += part
        fast[gap.tensor] = pages
    tables = [
        tier_ranges(tensor, ~pages, int(offset[tensor]), page) for tensor, pages in fast.items()
    ]
    return coalesce(np.concatenate([np.zeros(0, MOVE_DTYPE), *tables]))
