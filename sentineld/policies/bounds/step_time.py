# SPDX-License-Identifier: Apache-2.0
"""The least time that any software policy can take for a step, under the timing model.

A linear program (policies/lp/program.py, generous): pages become a fluid. What part of each
group of tensors is fast in each stretch is a variable; room, the migration
bandwidth and the stretches' times are linear in these. The program is solved
with few positions at which a group may change; its prices give a bound that holds for
all of them (policies/lp/dual.py). docs/policies.md says what it relaxes and why no policy can beat
it. Needs scipy.
"""

from __future__ import annotations

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.policies.lp.dual import least
from sentineld.policies.lp.groups import groups_of
from sentineld.policies.lp.program import Limits, changes_of, solve

GAP = 0.001
"""The bound is at most this part below what the program with all positions would say, unless
ROUNDS are over."""

ROUNDS = 6


def bound_seconds(profile: Profile, tiers: Tiers, budget_bytes: int) -> float:
    """No policy takes less for a steady step. Raises SentinelError without scipy, or if the solver
    finds no answer."""
    timing = timing_of(tiers)
    groups = groups_of(profile, timing, generous=True)
    limits = Limits(
        times_ns=profile.stretches["time_ns"].astype(np.float64),
        page_ns=timing.move_ns_per_byte * profile.page_bytes,
        capacity_pages=budget_bytes // profile.page_bytes,
        generous=True,
    )
    found_ns = float(limits.times_ns.sum())
    changes = changes_of(groups, generous=True)
    for _ in range(ROUNDS):
        fluid = solve(groups, limits, changes, "the bound")
        if fluid is None:
            raise SentinelError("failed", "the bound's linear program was not solved in time", "")
        dual = least(groups, limits, fluid.prices)
        found_ns = max(found_ns, dual.ns)
        if found_ns >= fluid.step_ns * (1 - GAP):
            break
        changes = [
            np.union1d(positions, np.flatnonzero(dual.moving[:, at]))
            for at, positions in enumerate(changes)
        ]
    return found_ns / 1e9
