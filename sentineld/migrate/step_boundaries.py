# SPDX-License-Identifier: Apache-2.0
"""Boundaries of a step at which there is something to do, and that recur in every step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sentineld.plan.move_queue import MoveTimes


class StepBoundaries:
    """Some boundaries of the step; the first boundary is always one of them."""

    def __init__(self, boundaries: Iterable[int], boundary_count: int) -> None:
        """boundaries: numbers within the step."""
        self._boundaries = sorted({0, *boundaries})
        self._count = boundary_count

    def after(self, boundary: int) -> int:
        """The first such boundary after `boundary`; both are counted since the first step."""
        step, at = divmod(boundary, self._count)
        index = bisect_right(self._boundaries, at)
        if index < len(self._boundaries):
            return step * self._count + self._boundaries[index]
        return (step + 1) * self._count


def wake_ups(
    times: Iterable[MoveTimes], waits: npt.NDArray[np.int32], stalls: Iterable[int]
) -> StepBoundaries:
    """The boundaries at which a mover with an empty queue has something to do.

    These are the beginning of the step, the boundaries at which moves begin, and the boundaries
    that the process waits for. At the others, the mover would only update its map of the residency,
    which it can do later. This saves most wake-ups. At each wake-up, a thread competes for Python's
    GIL.

    waits: Layout.waits.
    stalls: the boundaries at which the process may stall for a late promotion; see StallTrial.
    """
    count = len(waits)
    awaited = {int(wait) for wait in waits if wait >= 0}
    awaited |= {(boundary - 1) % count for boundary in stalls}
    return StepBoundaries(awaited | {one.begin for one in times}, count)
