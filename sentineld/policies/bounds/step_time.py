# SPDX-License-Identifier: Apache-2.0
"""The step-time bound: no software policy has a shorter step under the timing model.

The bound is the result of a relaxation in which any fraction of a group of tensors can be fast or
be moved. The relaxation is solved as a linear program (policies/lp/program.py). Limits.generous is
set, which omits the constraints that apply only to plans. The program's main variables are the
parts of each group of tensors that are fast in each stretch, the parts that are demoted, and the
stretches' durations. The room in use and the bandwidth in use are linear in these variables. The
program is solved with few positions (stretches of a group's lifetime) at which the group may change
its tier. The prices (dual values) of that solution give a bound that holds even if a group may
change its tier at any position (policies/lp/dual.py). docs/policies.md lists the relaxations and
explains why no policy can be faster. This module needs scipy.
"""

from __future__ import annotations

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap, Tiers
from sentineld.model.timing import Timing, timing_of
from sentineld.policies.lp.dual import LowerBound, lower_bound
from sentineld.policies.lp.groups import groups_of
from sentineld.policies.lp.problem import Changes, Limits, changes_of
from sentineld.policies.lp.program import solve

GAP = 0.001
"""Stop once the bound is at most this share below the optimum of the last program. The optimum of
the full program, in which groups may change their tier at all positions, lies between the bound and
the optimum of the last program."""

ROUNDS = 6
"""Maximum number of programs that are solved, one after another. Each program adds positions to
those of the previous program. On paged tiers, it also adds columns for clean pages."""


NEEDED_BY = "the step-time bound"
"""Name of the bound, for the error message if scipy is missing."""


def bound_seconds(profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
    """Compute the step-time bound of a steady step, in seconds.

    Raises SentinelError if scipy is not installed or the solver finds no optimum of the first
    program.
    """
    timing = timing_of(tiers)
    groups = groups_of(profile, timing, generous=True)
    limits = limits_of(profile, timing, budget_bytes)
    bound_ns = float(timing.costs(profile).least_ns(profile).sum())
    changes = changes_of(groups, generous=True)
    clean = np.zeros(len(groups.pages), np.bool_)
    for number in range(ROUNDS):
        solution = solve(groups, limits, changes, NEEDED_BY, clean)
        if solution is None:
            require_solved(number)
            break
        dual = lower_bound(groups, limits, solution.prices)
        bound_ns = max(bound_ns, dual.ns)
        if bound_ns >= solution.step_ns * (1 - GAP):
            break
        clean |= dual.clean
        changes = with_moves(changes, dual)
    return bound_ns / 1e9


def limits_of(profile: Profile, timing: Timing, budget_bytes: int) -> Limits:
    """The limits of a bound's program."""
    hides = timing.overlap != Overlap.NONE
    return Limits(
        times_ns=profile.stretches["time_ns"].astype(np.float64),
        promote_ns=timing.promote_ns_per_byte * profile.page_bytes,
        demote_ns=timing.demote_ns_per_byte * profile.page_bytes,
        capacity_pages=budget_bytes // profile.page_bytes,
        generous=True,
        hidden_ns=timing.costs(profile).hidden_ns if hides else None,
    )


def require_solved(programs: int) -> None:
    """Raise SentinelError if no program was solved. If any was solved, the bound found so far is
    valid. programs: number of programs that were solved."""
    if not programs:
        raise SentinelError(
            "failed", "the step-time bound's linear program was not solved", "try another budget"
        )


def with_moves(changes: Changes, dual: LowerBound) -> Changes:
    """Add, for each group, the positions at which its best life has a move (LowerBound.moving)."""
    return [
        np.union1d(positions, np.flatnonzero(dual.moving[:, at]))
        for at, positions in enumerate(changes)
    ]
