# SPDX-License-Identifier: Apache-2.0
"""Policy `static`: the best placement in which no page ever moves.

The result is the best that a user can do by hand, or with a profile-guided placement without
migration (SOAR, OSDI 2025; tensors placed by their role, arXiv 2507.03305). An integer program
chooses the tensors that are fast for their whole lives. It minimises the cost of the remaining slow
accesses and stays within the budget at every moment of the step. Persistent tensors may be split.
The solver HiGHS solves the program to within GAP of the optimum or until TIME_LIMIT_S seconds have
passed. If the chosen tensors, once packed, take more memory than the budget, the program is solved
again with less room. Unless the time limit ends the search, no fixed placement of the step's
tensors is better than the result by more than GAP plus the loss from packing.
"""

from __future__ import annotations

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.stdout import silent_stdout
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.plan.packing import alive_together
from sentineld.policies.registry import register
from sentineld.policies.require import require_room, scipy_missing
from sentineld.policies.rivals.fixed import fixed_pages, fixed_plan, slow_costs_ns
from sentineld.policies.shares import usable_pages

GAP = 1e-3
TIME_LIMIT_S = 5.0
"""Time limit for one run of the solver; the best placement found by then is used."""

TRIES = 12
"""Limit on the number of times that the program is solved. If the packed tensors exceed the budget,
the room for the next solution is reduced by the excess. If none of TRIES solutions fits, one more
run of the solver chooses among the persistent tensors only."""


@register()
class Static:
    """Policy `static`; see the module's docstring."""

    name = "static"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Place the tensors; see Policy. Raises SentinelError if the budget is negative, if scipy
        is not installed, or if the solver finds no placement."""
        require_room(budget_bytes)
        gain = slow_costs_ns(profile, tiers)
        limit = usable_pages(budget_bytes, profile.page_bytes)
        room = limit
        for _ in range(TRIES):
            born_fast, persistent_fast = best_placement(profile, gain, max(room, 0))
            over = fixed_pages(profile, born_fast, persistent_fast) - limit
            if over <= 0:
                return fixed_plan(
                    self.name, profile, tiers, budget_bytes, born_fast, persistent_fast
                )
            room -= over
        nothing = np.zeros(len(gain), np.bool_)
        return fixed_plan(
            self.name,
            profile,
            tiers,
            budget_bytes,
            nothing,
            best_placement(profile, np.where(transient(profile), 0.0, gain), limit)[1],
            ("the chosen tensors could not be packed: only persistent ones are fast",),
        )


def best_placement(profile: Profile, gain: Floats, room: int) -> tuple[Mask, Integers]:
    """Of the placements that take at most `room` pages at every moment of the step, find the one
    with the largest gain.

    gain: (T,), time that each tensor saves if it is fast as a whole.

    Returns (which transient tensors are fast, number of fast pages of each persistent tensor).
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix
    except ImportError:
        raise scipy_missing("static") from None
    born_fast, persistent_fast = np.zeros(len(gain), np.bool_), np.zeros(len(gain), np.int64)
    pages = tensor_pages(profile)
    moves, stays = transient(profile), persistent(profile)
    rows = np.flatnonzero((moves | stays) & (gain > 0) & (pages > 0))
    if not len(rows):
        return born_fast, persistent_fast
    size = pages[rows].astype(np.float64)
    together = _alive_at_points(profile, rows)
    with silent_stdout():
        found = milp(
            -gain[rows] / gain[rows].max(),
            integrality=moves[rows].astype(np.int64),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(csr_matrix(together * size), -np.inf, float(room)),
            options={"mip_rel_gap": GAP, "time_limit": TIME_LIMIT_S},
        )
    if found.x is None:
        raise SentinelError(
            "failed",
            f"no placement was found: {found.message}",
            "give the process more fast memory",
        )
    born_fast[rows] = moves[rows] & (found.x > 0.5)
    parts = np.floor(size * found.x + 1e-6).astype(np.int64)
    persistent_fast[rows] = np.where(stays[rows], np.minimum(parts, pages[rows]), 0)
    return born_fast, persistent_fast


def _alive_at_points(profile: Profile, rows: Integers) -> Mask:
    """(M, N): which of the N rows are alive at each of M pressure points. A pressure point is a
    birth with at least one death between it and the next birth."""
    tensors = profile.tensors[rows]
    stays = tensors["slot"] < 0
    birth, death = tensors["birth_event"].astype(np.int64), tensors["death_event"].astype(np.int64)
    moments = np.unique(birth[~stays])
    deaths = np.sort(death[~stays])
    if not len(moments):
        return np.ones((1, len(rows)), np.bool_)
    # Skip a birth if no tensor dies before the next birth: even more tensors are alive at the next
    # birth.
    following = np.append(moments[1:], moments[0] + profile.event_count)
    twice = np.concatenate([deaths, deaths + profile.event_count])
    counted = np.searchsorted(twice, following, side="right") - np.searchsorted(
        twice, moments, side="right"
    )
    together = [
        stays | alive_together(birth, death, event, event + 1)
        for event in moments[counted > 0].tolist()
    ]
    return np.array(together)
