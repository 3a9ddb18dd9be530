# SPDX-License-Identifier: Apache-2.0
"""Cuts: allocation cursors that become boundaries inside long stretches.

The layers' boundaries leave stretches in which nothing can be moved; the
optimizer's step is one of them and touches nearly everything. Chosen from a step
of which only the ring is known, before the access step, so that samples, plan
and moves all know the same stretches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.plan.model import SLOT_DTYPE, Layout
from sentineld.profile.steps import Step, boundary_records
from sentineld.shim.protocol import Alloc, Event

STRETCH_SHARE_MAX = 0.01
"""Of the step's time, for one stretch, where a cut exists."""

BIRTHS_SHARE_MAX = 0.5
"""Of the budget, for the bytes born in one stretch, where a cut exists."""


def choose_cuts(
    step: Step, budget_bytes: int, share_max: float = STRETCH_SHARE_MAX
) -> npt.NDArray[np.uint32]:
    """Cursors, rising, before whose allocations the step gets a boundary.

    Each stretch is cut as late as both limits allow, so that there are as few
    cuts as possible; between two allocations that are further apart there can
    be none.
    """
    records = step.records
    allocs = records[(records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)]
    boundaries = boundary_records(step)
    times = allocs["time_ns"].astype(np.int64)
    born = np.concatenate([[0], np.cumsum(allocs["bytes"].astype(np.int64))])
    begins = boundaries["time_ns"].astype(np.int64)
    ends = np.append(begins[1:], step.end_ns)
    limit_ns = max(int((step.end_ns - begins[0]) * share_max), 1)
    limit_bytes = max(int(budget_bytes * BIRTHS_SHARE_MAX), 1)
    cuts: list[int] = []
    firsts = boundaries["bytes"].astype(np.int64)
    lasts = np.append(firsts[1:], len(allocs))
    for begin, end, first, last in zip(
        begins.tolist(), ends.tolist(), firsts.tolist(), lasts.tolist(), strict=True
    ):
        since, cursor = begin, min(first, len(allocs))
        while cursor < last:
            by_bytes = int(np.searchsorted(born, born[cursor] + limit_bytes, side="right")) - 1
            if end - since > limit_ns:
                by_time = int(np.searchsorted(times, since + limit_ns, side="right")) - 1
            else:
                by_time = last
            # At least one allocation lies between two cuts, or the cut would not advance.
            cut = max(min(by_bytes, by_time), cursor + 1)
            if cut >= last:
                break
            cuts.append(cut)
            since, cursor = int(times[cut]), cut
    return np.array(cuts, dtype=np.uint32)


def provisional_layout(step: Step, cuts: npt.NDArray[np.uint32]) -> Layout:
    """A layout that plans no tensor and only makes the cuts boundaries."""
    records = step.records
    allocs = records[(records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)]
    slots = np.zeros(len(allocs), SLOT_DTYPE)
    slots["bytes"] = allocs["bytes"]
    boundary_count = len(boundary_records(step)) + len(cuts)
    return Layout(
        slots=slots,
        cuts=cuts,
        regions=(),
        waits=np.full(boundary_count, -1, np.int32),
        arena_bytes=0,
    )
