# SPDX-License-Identifier: Apache-2.0
"""Estimate how long stretches would take with all memory fast, from steps measured under a plan."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.residency import fast_shares, residency
from sentineld.plan.turnover import turnover
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.times import stretch_times


def planned_extra_ns(plan: Plan, profile: Profile, tiers: Tiers) -> Floats:
    """(S,): the time that slow accesses add to each stretch if all moves are in time."""
    slow = 1 - fast_shares(profile, residency(plan, profile))
    found: Floats = timing_of(tiers).stretch_ns(profile, slow) - profile.stretches["time_ns"]
    return found


def births_ns(plan: Plan, profile: Profile, tiers: Tiers) -> Floats:
    """(S,): the time that page births take in each stretch."""
    page_ns = timing_of(tiers).birth_ns_per_byte * profile.page_bytes
    if not page_ns:
        return np.zeros(profile.stretch_count)
    born = turnover(plan.layout, profile, (0, 1, None)).births(profile).astype(np.float64)
    return born * page_ns


def spent_ns(profile: Profile, step: Step) -> Floats | None:
    """(S,): measured time of each stretch of a step.

    Returns None if the step's boundaries differ from the profile's.
    """
    boundaries = boundary_records(step)
    if not np.array_equal(boundaries["bytes"], profile.stretches["cursor"]):
        return None
    found: Floats = stretch_times(profile.stretches, step).astype(np.float64)
    return found


def all_fast_ns(plan: Plan, profile: Profile, spent: Floats, extra_ns: Floats) -> Floats:
    """(N, S): the times that the stretches of N steps would have taken with all memory fast.

    A stretch that begins at a boundary with a wait keeps its profiled time, because its measured
    time can include the wait.

    spent: (N, S), measured times in ns.
    extra_ns: (S,), the time that slow accesses and births add to each stretch.
    """
    assumed = profile.stretches["time_ns"].astype(np.float64)
    found: Floats = np.where(plan.layout.waits >= 0, assumed, np.maximum(spent - extra_ns, 0.0))
    return found
