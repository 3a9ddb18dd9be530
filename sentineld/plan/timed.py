# SPDX-License-Identifier: Apache-2.0
"""What a step under a plan tells of its stretches' all-fast times."""

from __future__ import annotations

import numpy as np

from sentineld.plan.items import Floats
from sentineld.plan.model import Plan
from sentineld.plan.residency import fast_shares, residency
from sentineld.profile.model import Profile
from sentineld.profile.steps import Step, boundary_records
from sentineld.profile.times import stretch_times
from sentineld.tiers import Tiers
from sentineld.timing import timing_of


def planned_extra_ns(plan: Plan, profile: Profile, tiers: Tiers) -> Floats:
    """(S,): what slow accesses cost in each stretch if all goes as planned."""
    slow = 1 - fast_shares(profile, residency(plan, profile))
    found: Floats = timing_of(tiers).stretch_ns(profile, slow) - profile.stretches["time_ns"]
    return found


def all_fast_ns(plan: Plan, profile: Profile, extra_ns: Floats, step: Step) -> Floats | None:
    """(S,): what each stretch of a recorded step under the plan would have taken with all memory
    fast; as profiled where the step may have waited for moves. None: it is no such step."""
    boundaries = boundary_records(step)
    if not np.array_equal(boundaries["bytes"], profile.stretches["cursor"]):
        return None
    assumed = profile.stretches["time_ns"].astype(np.float64)
    spent = stretch_times(profile.stretches, step).astype(np.float64) - extra_ns
    found: Floats = np.where(plan.layout.waits >= 0, assumed, np.maximum(spent, 0.0))
    return found
