# SPDX-License-Identifier: Apache-2.0
"""Cuts: allocation cursors that become boundaries inside long stretches.

Between the boundaries of layers there are long stretches in which no move can start.
One of these stretches is the optimizer step, which touches nearly all memory. Cuts are
chosen from the shim's records of one step, before the access step, so that samples, plan
and moves all refer to the same stretches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model.plan import SLOT_DTYPE, Layout
from sentineld.model.protocol import Boundary
from sentineld.model.records import Records
from sentineld.profile.steps import Step, allocation_records, boundary_records

STRETCH_SHARE_MAX = 0.01
"""Limit on the duration of a stretch, as a share of the step's time. A longer stretch is cut if a
cut is possible there."""

TOUCHED_SHARE_MAX = 0.5
"""Limit on the bytes that a stretch touches, as a share of the budget. A stretch that touches more
bytes is cut if a cut is possible there."""

CUTS_MAX = 1000
"""Limit on the number of cuts of a step. The planners hold tables with an entry for each tensor and
stretch, so with too many stretches they exceed the setting plan_memory_bytes. A step of 9603
tensors and 1006 stretches can be planned (docs/policies.md)."""

TOUCHED_OVER_BORN = 2.0
"""Estimated bytes touched per byte allocated in the forward and backward passes. The passes write
the bytes that they allocate, and they read about as many."""

OPTIMIZER_MARGIN = 3.0
"""Safety factor for the touched bytes of an optimizer step. These bytes are not recorded but
estimated from the optimizer's scratch tensors. The estimate is imprecise, because the work on a
parameter begins before its scratch tensor is allocated, and the ratio of touched bytes to scratch
bytes varies between parameters."""


def choose_cuts(
    step: Step, budget_bytes: int, share_max: float = STRETCH_SHARE_MAX
) -> npt.NDArray[np.uint32]:
    """Choose the allocation cursors, in ascending order, at which the step gets extra boundaries.

    Each stretch is cut as late as the limits on its duration and touched bytes allow, which gives
    the fewest cuts. A cut is only possible at an allocation, so a stretch between distant
    allocations can exceed the limits. If the limits give more than CUTS_MAX cuts, the limit on
    touched bytes is raised: with a very small budget, every allocation would otherwise become a
    cut.

    share_max: maximum duration of a stretch, as a share of the step's time. If it is less
        than 3 / CUTS_MAX, there can be more than CUTS_MAX cuts.
    """
    allocs = allocation_records(step)
    boundaries = boundary_records(step)
    times = allocs["time_ns"].astype(np.int64)
    touched = np.concatenate([[0], np.cumsum(_touched_bytes(step, allocs, boundaries))])
    begins = boundaries["time_ns"].astype(np.int64)
    ends = np.append(begins[1:], step.end_ns)
    limit_ns = max(int((step.end_ns - begins[0]) * share_max), 1)
    limit_bytes = max(int(budget_bytes * TOUCHED_SHARE_MAX), 1)
    # If records were lost, boundary cursors can exceed the number of recorded allocations.
    firsts = np.minimum(boundaries["bytes"], len(allocs)).astype(np.int64)
    lasts = np.append(firsts[1:], len(allocs))
    stretches = list(
        zip(begins.tolist(), ends.tolist(), firsts.tolist(), lasts.tolist(), strict=True)
    )
    touched_bytes = int(touched[-1])
    cuts = _cuts(stretches, times, touched, limit_ns, limit_bytes)
    while len(cuts) > CUTS_MAX and limit_bytes < touched_bytes:
        limit_bytes = max(2 * limit_bytes, touched_bytes // CUTS_MAX)
        cuts = _cuts(stretches, times, touched, limit_ns, limit_bytes)
    return np.array(cuts, dtype=np.uint32)


def _cuts(
    stretches: list[tuple[int, int, int, int]],
    times: npt.NDArray[np.int64],
    touched: npt.NDArray[np.int64],
    limit_ns: int,
    limit_bytes: int,
) -> list[int]:
    """The cuts for these limits on a stretch's duration and touched bytes.

    stretches: for each stretch between boundaries, its begin and end in ns, its first allocation
        and the one after its last.
    times: the time of each allocation, in ns.
    touched: for each allocation, the bytes touched before it; the last entry is the step's sum.
    """
    cuts: list[int] = []
    for begin, end, first, last in stretches:
        since, cursor = begin, first
        while cursor < last:
            full = touched[cursor] + limit_bytes
            by_bytes = int(np.searchsorted(touched, full, side="right")) - 1
            if end - since > limit_ns:
                by_time = int(np.searchsorted(times, since + limit_ns, side="right")) - 1
            else:
                by_time = last
            # Keep successive cuts at least one allocation apart; otherwise the loop would not
            # advance.
            cut = max(min(by_bytes, by_time), cursor + 1)
            if cut >= last:
                break
            cuts.append(cut)
            since, cursor = int(times[cut]), cut
    return cuts


def before_optional(
    cuts: npt.NDArray[np.uint32], optional: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint32]:
    """The cuts; a cut that directly follows optional allocations is moved before them.

    An allocation is optional if steps may lack it (Sizes.optional). At each allocation, the shim
    first looks for a cut and only then notices that optional allocations before this one are
    missing. It would therefore miss a cut between a missing allocation and the next one.

    optional: (slots,), or empty if no allocation is optional.
    """
    moved = [int(cut) for cut in cuts]
    for at, cut in enumerate(moved):
        while 0 < cut <= len(optional) and optional[cut - 1]:
            cut -= 1
        moved[at] = cut
    return np.unique(np.array([cut for cut in moved if cut > 0], np.uint32))


def _touched_bytes(step: Step, allocs: Records, boundaries: Records) -> npt.NDArray[np.int64]:
    """For each allocation, an estimate of the bytes touched between this allocation and the next.

    The shim records allocations, not accesses. The estimate assumes that an optimizer passes once
    over everything that was live when the step began (parameters, gradients, optimizer state), and
    that the bytes touched after each scratch allocation of the optimizer are proportional to the
    allocation's size.
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
    """A layout that places no tensor and only turns the cuts into boundaries."""
    allocs = allocation_records(step)
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
