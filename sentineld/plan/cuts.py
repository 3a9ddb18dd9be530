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

from sentineld.model.plan import SLOT_DTYPE, Layout
from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.model.records import Records
from sentineld.profile.steps import Step, boundary_records

STRETCH_SHARE_MAX = 0.01
"""Of the step's time, for one stretch, where a cut exists."""

TOUCHED_SHARE_MAX = 0.5
"""Of the budget, for the bytes touched in one stretch, where a cut exists."""

TOUCHED_OVER_BORN = 2.0
"""In forward and backward: about as much is read as is born."""

OPTIMIZER_MARGIN = 3.0
"""How much sooner an optimizer is cut than its scratch says: what it does to a parameter begins
before the scratch's birth, and parameters differ in what they need."""


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
    touched = np.concatenate([[0], np.cumsum(_touched_bytes(step, allocs, boundaries))])
    begins = boundaries["time_ns"].astype(np.int64)
    ends = np.append(begins[1:], step.end_ns)
    limit_ns = max(int((step.end_ns - begins[0]) * share_max), 1)
    limit_bytes = max(int(budget_bytes * TOUCHED_SHARE_MAX), 1)
    cuts: list[int] = []
    # Where records are missing, cursors go beyond the allocations that are left.
    firsts = np.minimum(boundaries["bytes"], len(allocs)).astype(np.int64)
    lasts = np.append(firsts[1:], len(allocs))
    for begin, end, first, last in zip(
        begins.tolist(), ends.tolist(), firsts.tolist(), lasts.tolist(), strict=True
    ):
        since, cursor = begin, first
        while cursor < last:
            full = touched[cursor] + limit_bytes
            by_bytes = int(np.searchsorted(touched, full, side="right")) - 1
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


def _touched_bytes(step: Step, allocs: Records, boundaries: Records) -> npt.NDArray[np.int64]:
    """For each allocation a guess at the bytes touched from it to the next one.

    The ring tells births alone. An optimizer's scratch stands for all that was live when the step
    began (parameters, their gradients and states): it goes through these once, in parts of the
    scratch's sizes.
    """
    sizes = allocs["bytes"].astype(np.float64)
    stretch = np.searchsorted(boundaries["bytes"], np.arange(len(allocs)), side="right") - 1
    in_optimizer = boundaries["detail"][stretch] == Boundary.OPTIMIZER
    scratch = sizes[in_optimizer].sum()
    live = float(sum(tensor.bytes for tensor in step.live.values()))
    in_turn = OPTIMIZER_MARGIN * live / scratch if scratch else 0.0
    each = np.where(in_optimizer, max(in_turn, 1.0), TOUCHED_OVER_BORN)
    touched: npt.NDArray[np.int64] = (sizes * each).astype(np.int64)
    return touched


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
