# SPDX-License-Identifier: Apache-2.0
"""Durations of stretches, taken from a step that was not slowed down by sampling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model.protocol import Alloc, Boundary, Event
from sentineld.profile.steps import Step, boundary_records


def stretch_times(stretches: npt.NDArray[np.void], timed: Step) -> npt.NDArray[np.uint64]:
    """Duration in ns of each stretch of the sampled step, measured in another step.

    stretches: STRETCH_DTYPE with the times of the sampled step.
    timed: the other step. A cut that it lacks is placed at the allocation that follows the cut.

    Returns the times of the sampled step if the boundaries other than cuts differ between the two
    steps, or if the other step has no allocation after one of the cuts.
    """
    begins = _begins(stretches, timed)
    if begins is None:
        return stretches["time_ns"].copy()
    times = np.diff(np.append(np.maximum.accumulate(begins), timed.end_ns))
    return np.maximum(times, 0).astype(np.uint64)


def _begins(stretches: npt.NDArray[np.void], timed: Step) -> npt.NDArray[np.int64] | None:
    """Time at which each stretch begins in the other step; None in the cases in which
    stretch_times() returns the times of the sampled step."""
    boundaries = boundary_records(timed)
    if np.array_equal(boundaries["bytes"], stretches["cursor"]):
        return boundaries["time_ns"].astype(np.int64)
    is_cut = stretches["kind"] == Boundary.CUT
    boundaries = boundaries[boundaries["detail"] != Boundary.CUT]
    if not np.array_equal(boundaries["bytes"], stretches["cursor"][~is_cut]):
        return None
    cursors = stretches["cursor"][is_cut]
    if len(cursors) and cursors.max() >= len(_allocations(timed)):
        return None
    begins = np.zeros(len(stretches), np.int64)
    begins[~is_cut] = boundaries["time_ns"]
    begins[is_cut] = cut_times_ns(timed, cursors)
    return begins


def cut_times_ns(step: Step, cursors: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The time of each cut in a step that lacks the cuts: that of the allocation that follows.

    cursors: allocation cursors of the cuts; each is less than the step's number of allocations.
    """
    times: npt.NDArray[np.int64] = _allocations(step)["time_ns"].astype(np.int64)
    return times[cursors.astype(np.int64)]


def _allocations(step: Step) -> npt.NDArray[np.void]:
    records = step.records
    found: npt.NDArray[np.void] = records[
        (records["event"] == Event.ALLOC) & (records["detail"] == Alloc.STEP)
    ]
    return found
