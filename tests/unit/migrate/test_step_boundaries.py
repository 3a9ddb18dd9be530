# SPDX-License-Identifier: Apache-2.0
"""Boundaries that recur in each step, such as those at which a sleeping mover wakes up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.step_boundaries import StepBoundaries, wake_ups
from sentineld.plan.move_queue import MoveTimes

COUNT = 8
NO_WAITS = np.full(COUNT, -1, np.int32)


def waiting_at(boundary: int, awaited: int) -> npt.NDArray[np.int32]:
    waits = NO_WAITS.copy()
    waits[boundary] = awaited
    return waits


def beginning_at(boundary: int) -> MoveTimes:
    return MoveTimes(begin=boundary, ahead=1, window=2, useful=3)


def in_step(boundaries: StepBoundaries) -> list[int]:
    """The boundaries of step 5."""
    found, at = [], 5 * COUNT - 1
    while (at := boundaries.after(at)) < 6 * COUNT:
        found.append(at - 5 * COUNT)
    return found


def test_a_plan_without_moves_wakes_its_mover_once_in_a_step() -> None:
    assert in_step(wake_ups([], NO_WAITS, [])) == [0]


def test_moves_begin_on_time() -> None:
    assert in_step(wake_ups([beginning_at(3), beginning_at(6)], NO_WAITS, [])) == [0, 3, 6]


def test_the_process_does_not_wait_for_a_sleeping_mover() -> None:
    # The demotion is queued at boundary 2, planned for boundary 3, and awaited at boundary 5.
    found = wake_ups([beginning_at(2)], waiting_at(5, 3), [])
    assert in_step(found) == [0, 2, 3]


def test_the_boundary_before_a_stall_is_published() -> None:
    assert in_step(wake_ups([], NO_WAITS, [4, 0])) == [0, 3, 7]


@given(st.sets(st.integers(0, COUNT - 1)), st.integers(0, 10 * COUNT))
def test_the_next_boundary_is_the_nearest(boundaries: set[int], boundary: int) -> None:
    found = StepBoundaries(boundaries, COUNT).after(boundary)
    wanted = boundaries | {0}
    assert found > boundary
    assert found % COUNT in wanted
    assert not any(between % COUNT in wanted for between in range(boundary + 1, found))
