# SPDX-License-Identifier: Apache-2.0
"""Divides the accesses of long operators among the stretches during which the operators run.

An operator can contain boundaries: the cuts at its allocations. A recurrent operator, for example,
allocates its workspace and reordered weights first and its scratch memory last, and accesses all of
them afterwards. The profiler reports when an operator begins and ends, but not when the operator
accesses each tensor. So each access is divided among the stretches in proportion to the
operator's time in each of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.model.ranges import ranges

SHARE_MIN = 1 / 64
"""No part of an access is assigned to a stretch in which the operator spends less than this share
of its time, because the operator probably only allocates in this stretch. If this applies to all
stretches, the access is assigned to the one in which the operator spends the most time. On
paged tiers, a wrong assignment would prevent moves: plans do not move a tensor in a stretch that
uses it."""

Rows = npt.NDArray[np.void]
Integers = npt.NDArray[np.uint64]


def divided(rows: Rows, ends_ns: Integers, records: Rows) -> Rows:
    """Divide accesses at the boundaries.

    rows: OP_ACCESS_DTYPE.
    ends_ns: (rows,), the end of the operator of each row; a row whose end is before its time_ns is
        returned unchanged. An access also ends when its tensor is freed.
    records: the step's ring records; may be empty.
    """
    boundaries = records["time_ns"][records["event"] == protocol.Event.BOUNDARY]
    if not len(rows) or not len(boundaries):
        return rows
    begin = rows["time_ns"].astype(np.int64)
    end = np.minimum(ends_ns.astype(np.int64), _deaths_ns(rows, records))
    times = np.sort(boundaries.astype(np.int64))
    first = np.searchsorted(times, begin, side="right")
    inside = np.maximum(np.searchsorted(times, end, side="left") - first, 0)
    # The boundaries inside the first access, then those inside the second one, and so on.
    between = times[ranges(first, inside)]
    past = np.cumsum(inside)
    begins, lasts = np.insert(between, past - inside, begin), np.insert(between, past, end)
    row = np.repeat(np.arange(len(rows)), inside + 1)
    whole = np.maximum(end - begin, 1)[row]
    share = np.where(inside[row] > 0, (lasts - begins) / whole, 1.0)
    largest = np.maximum.reduceat(share, past - inside + np.arange(len(rows)))
    kept = share >= np.minimum(largest, SHARE_MIN)[row]
    row, share = row[kept], share[kept]
    share /= np.bincount(row, share)[row]
    found = rows[row]
    found["time_ns"] = begins[kept]
    found["bytes"] = np.maximum(np.rint(found["bytes"] * share), 1)
    found["estimated"] |= inside[row] > 0
    return found


def ends_of(times_ns: Integers, spans_ns: Integers) -> Integers:
    """For each time, the end of the innermost operator that runs at this time. If no operator runs,
    the time itself.

    spans_ns: (operators, 2), begin and end of each operator. Two operators either do not overlap,
        or one of them contains the other.
    """
    begins, ends = spans_ns.T
    found = times_ns.copy()
    for at, time_ns in enumerate(times_ns):
        around = np.flatnonzero((begins <= time_ns) & (time_ns < ends))
        if len(around):
            found[at] = ends[around].min()
    return found


def _deaths_ns(rows: Rows, records: Rows) -> npt.NDArray[np.int64]:
    """(rows,): the time at which each row's tensor is freed; the largest int64 if it is not."""
    never = np.iinfo(np.int64).max
    found = np.full(len(rows), never)
    freed = records[records["event"] == protocol.Event.FREE]
    order = np.lexsort((freed["time_ns"], freed["address"]))
    freed = freed[order]
    first = np.searchsorted(freed["address"], rows["address"], side="left")
    past = np.searchsorted(freed["address"], rows["address"], side="right")
    for at in np.flatnonzero(past > first).tolist():
        times = freed["time_ns"][first[at] : past[at]]
        later = times[times > rows["time_ns"][at]]
        if len(later):
            found[at] = int(later[0])
    return found
