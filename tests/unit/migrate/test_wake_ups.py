# SPDX-License-Identifier: Apache-2.0
"""The boundaries at which a mover without queued moves wakes up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.wake_ups import WakeUps
from sentineld.plan.move_queue import MoveTimes

COUNT = 8
NO_WAITS = np.full(COUNT, -1, np.int32)


def waiting_at(boundary: int, awaited: int) -> npt.NDArray[np.int32]:
    waits = NO_WAITS.copy()
    waits[boundary] = awaited
    return waits


def beginning_at(boundary: int) -> MoveTimes:
    return MoveTimes(begin=boundary, ahead=1, window=2, useful=3)


def in_step(wake_ups: WakeUps) -> list[int]:
    """The boundaries of step 5."""
    found, at = [], 5 * COUNT - 1
    while (at := wake_ups.after(at)) < 6 * COUNT:
        found.append(at - 5 * COUNT)
    return found


def test_a_plan_without_moves_wakes_its_mover_once_in_a_step() -> None:
    assert in_step(WakeUps([], NO_WAITS, [])) == [0]


def test_moves_begin_on_time() -> None:
    assert in_step(WakeUps([beginning_at(3), beginning_at(6)], NO_WAITS, [])) == [0, 3, 6]


def test_the_process_does_not_wait_for_a_sleeping_mover() -> None:
    # The demotion is queued at boundary 2, planned for boundary 3, and awaited at boundary 5.
    wake_ups = WakeUps([beginning_at(2)], waiting_at(5, 3), [])
    assert in_step(wake_ups) == [0, 2, 3]


def test_the_boundary_before_a_stall_is_published() -> None:
    assert in_step(WakeUps([], NO_WAITS, [4, 0])) == [0, 3, 7]


@given(st.sets(st.integers(0, COUNT - 1)), st.integers(0, 10 * COUNT))
def test_the_next_boundary_is_the_nearest(begins: set[int], boundary: int) -> None:
    found = WakeUps(map(beginning_at, begins), NO_WAITS, []).after(boundary)
    wanted = begins | {0}
    assert found > boundary
    assert found % COUNT in wanted
    assert not any(between % COUNT in wanted for between in range(boundary + 1, found))
