# SPDX-License-Identifier: Apache-2.0
"""Computes how often the kernel module arms accessed pages again while it samples a step.

Sentinel (Ren et al., HPCA 2021) counts the accesses to each page. The module sees only the first
access to a page after the page was armed, so it arms accessed pages again once per period. The
number of counted accesses to a page in a stretch is therefore the number of periods of the stretch
in which the page was accessed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.observe.uapi import REARM_US_MAX, REARM_US_MIN
from sentineld.profile.steps import Step, allocation_records, boundary_records

PERIODS = 4
"""Periods in a typical stretch. Every period costs a scan of the pages accessed in the stretch, and
a fault for each of these pages that is accessed again."""


def rearm_period_us(step: Step, cuts: npt.NDArray[np.uint32]) -> int:
    """The period for sampling a step like `step`, but with cuts at the allocation cursors `cuts`.
    The result is limited to REARM_US_MIN .. REARM_US_MAX.

    The period is the time of the typical stretch, divided by PERIODS. The typical stretch is the
    median of the stretches, weighted by their times: half of the total time is in stretches that
    are at least as long as the typical stretch. The time before the first layer is left out: in
    this time the training waits for its data, often for longer than the layers take.
    """
    boundaries_ns = boundary_records(step)["time_ns"].astype(np.int64)
    boundaries_ns = boundaries_ns[1:] if len(boundaries_ns) > 1 else boundaries_ns
    # The step has no cuts yet. A cut at cursor N comes before allocation N of the step, so its time
    # is taken as the time of this allocation.
    cuts_ns = allocation_records(step)["time_ns"][cuts].astype(np.int64)
    cuts_ns = cuts_ns[cuts_ns > boundaries_ns[0]]
    begins_ns = np.sort(np.concatenate([boundaries_ns, cuts_ns]))
    times_ns = np.sort(np.diff(begins_ns, append=step.end_ns))
    passed_ns = np.cumsum(times_ns)
    typical_ns = int(times_ns[np.searchsorted(passed_ns, passed_ns[-1] / 2)])
    return min(max(typical_ns // (1000 * PERIODS), REARM_US_MIN), REARM_US_MAX)
