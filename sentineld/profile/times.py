# SPDX-License-Identifier: Apache-2.0
"""Durations of stretches, taken from a step that was not slowed down by sampling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model.protocol import Boundary
from sentineld.profile.steps import Step, allocation_records, boundary_records


def stretch_times(stretches: npt.NDArray[np.void], timed: Step) -> npt.NDArray[np.uint64]:
    """Duration in ns of each stretch of the sampled step, measured in another step.

    stretches: STRETCH_DTYPE with the times of the sampled step.
    timed: the other step. If its cuts are not those of the sampled step, each cut of the sampled
        step gets the time at which the other step makes the allocation after the cut.

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
    allocs = allocation_records(timed)
    cursors = stretches["cursor"][is_cut].astype(np.int64)
    if len(cursors) and cursors.max() >= len(allocs):
        return None
    begins = np.zeros(len(stretches), np.int64)
    begins[~is_cut] = boundaries["time_ns"]
    begins[is_cut] = allocs["time_ns"][cursors]
    return begins
