# SPDX-License-Identifier: Apache-2.0
"""Migration intervals and their constraints."""

from __future__ import annotations

import numpy as np

from sentineld.plan.items import chunks
from sentineld.policies.sentinel.intervals import (
    Constraints,
    Interval,
    may_enter,
    pooled_moves,
    powers_of_two,
)
from tests.unit.plan.toys import toy_profile


def judged(room: float, moves: float, stretches: int = 1) -> Interval:
    """Check an interval length for the toy step (see toy_profile()). room: fast pages. moves: pages
    that each stretch can move. stretches: the interval length."""
    items = chunks(toy_profile(), np.array([0, 2, 3, 4]), 8)
    return Constraints(items, room, np.full(4, moves)).interval(stretches)


def test_an_interval_is_judged_by_space_and_time() -> None:
    # Pages: activation 2, gradient 2, state 4, parameter 2. If each interval is one stretch long,
    # the four intervals use 2, 2, 6 and 8 pages. Before these intervals, 0, 2 (parameter), 2
    # (activation) and 4 (state) pages have to be promoted. The other pages are born in the interval
    # or are used by the interval before it. The need of 8 pages has to be less than the room.
    one = judged(9.0, 4.0)
    assert one.need_pages == 8
    assert one.fits_space
    assert one.fits_time
    assert not judged(8.0, 4.0).fits_space
    assert not judged(9.0, 3.9).fits_time


def test_the_last_interval_of_a_step_can_be_shorter() -> None:
    # Intervals of three stretches: the first interval uses 6 pages, those of all tensors but the
    # state. The last interval, stretch 3, uses 8 pages, those of all tensors but the activation.
    # The state moves during stretches 0 to 2. The activation's 2 pages, which only the first
    # interval uses, are born in it and do not move.
    assert judged(9.0, 4 / 3, 3) == Interval(3, 8, fits_space=True, fits_time=True)
    # Three stretches at 1.3 pages each are too short for the state's 4 pages.
    assert not judged(9.0, 1.3, 3).fits_time


def test_promotion_is_for_this_interval_or_the_next() -> None:
    # The state is used only in stretch 3.
    items = chunks(toy_profile(), np.array([3]), 8)
    assert may_enter(items, 1)[:, 0].tolist() == [False, False, True, False]
    assert may_enter(items, 2)[:, 0].tolist() == [True, True, True, False]
    assert may_enter(items, 4)[:, 0].tolist() == [True, True, True, True]


def test_candidate_lengths() -> None:
    assert powers_of_two(100) == [1, 2, 4, 8, 16, 32]
    assert powers_of_two(1) == [1]


def test_moves_of_tiny_stretches_count_to_the_one_before() -> None:
    pooled = pooled_moves(np.array([1.0, 5.0, 1.0, 1.5]), 2)
    # The largest chunk has 2 pages. The capacity of stretch 3 is added to that of stretch 2, which
    # can then move such a chunk. The capacity of stretch 0 is added to that of the stretch before
    # it, stretch 3 of the previous step.
    assert pooled.tolist() == [0.0, 5.0, 2.5, 1.0]
