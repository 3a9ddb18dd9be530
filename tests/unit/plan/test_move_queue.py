# SPDX-License-Identifier: Apache-2.0
"""The rules of the move queue, tested with moves of integer ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sentineld.model.plan import MOVE_DTYPE
from sentineld.plan.move_queue import MoveQueue, MoveTimes, Span, is_late, move_times


@dataclass(eq=False)
class Move:
    low: int
    high: int
    tier: int
    due: int = 1
    deadline: int = 2
    expiry: int = 3
    stalls: bool = False
    yields: bool = False

    def covers(self, other: Move) -> bool:
        return self.low <= other.low and other.high <= self.high

    def overlaps(self, other: Move) -> bool:
        return self.low < other.high and other.low < self.high


class Queue(MoveQueue[Move]):
    """A queue that records the lower end of each cancelled move's range, and the reason for the
    cancellation."""

    def __init__(self, *moves: Move) -> None:
        self.cancelled: list[tuple[int, str]] = []
        super().__init__(lambda move, why: self.cancelled.append((move.low, why)))
        for move in moves:
            self.add(move)


def test_demotions_are_ordered_by_due_and_promotions_by_deadline() -> None:
    queue = Queue(
        Move(0, 1, 1, due=3),
        Move(1, 2, 1, due=2),
        Move(2, 3, 1, due=2),
        Move(3, 4, 0, deadline=5),
        Move(4, 5, 0, deadline=4),
        Move(5, 6, 0, deadline=4),
    )
    assert [move.low for move in queue.demotions] == [1, 2, 0]
    assert [move.low for move in queue.promotions] == [4, 5, 3]
    assert [move.low for move in queue.due_demotions(2)] == [1, 2]


def test_a_move_cancels_the_promotions_that_it_overlaps() -> None:
    for tier in (0, 1):
        queue = Queue(Move(0, 4, 0), Move(4, 8, 0), Move(3, 5, tier))
        assert queue.cancelled == [(0, "superseded"), (4, "superseded")]


def test_only_a_promotion_cancels_demotions_and_only_those_that_it_covers() -> None:
    queue = Queue(Move(0, 4, 1), Move(4, 8, 1), Move(3, 8, 1))
    assert not queue.cancelled
    queue.add(Move(4, 9, 0))
    assert queue.cancelled == [(4, "superseded")]
    assert len(queue.demotions) == 2


def test_dropped_and_expired_moves_are_cancelled() -> None:
    queue = Queue(Move(0, 2, 1), Move(1, 5, 1), Move(6, 8, 0, expiry=7), Move(8, 9, 0, expiry=8))
    queue.drop(Move(0, 4, 0).covers)
    assert queue.cancelled == [(0, "absent")]
    queue.expire(7)
    assert queue.cancelled[1:] == [(6, "late")]
    queue.clear("paused")
    assert queue.cancelled[2:] == [(1, "paused"), (8, "paused")]
    queue.replace([Move(1, 2, 0), Move(1, 2, 1)])
    assert (len(queue.demotions), len(queue.promotions)) == (1, 1)
    assert len(queue.cancelled) == 4


@pytest.mark.parametrize(
    ("due", "promoted", "early", "chosen"),
    [("d", "p", "e", "d"), (None, "p", "e", "p"), (None, None, "e", "e"), (None, None, None, None)],
)
def test_due_demotions_run_first_then_promotions_then_early_demotions(
    due: str | None, promoted: str | None, early: str | None, chosen: str | None
) -> None:
    queue = Queue(Move(0, 1, 0))
    assert queue.next_work(lambda: due, lambda: promoted, lambda: early) == chosen


def never(_: int) -> bool:
    return False


def always(_: int) -> bool:
    return True


def test_done_is_held_by_demotions_and_by_promotions_for_which_the_process_stalls() -> None:
    queue = Queue(Move(0, 1, 1, due=9), Move(1, 2, 0, deadline=7))
    assert queue.done(12) == 8
    assert queue.done(5) == 5
    queue = Queue(Move(0, 1, 1, due=9), Move(1, 2, 0, deadline=7, stalls=True))
    assert queue.done(6) == queue.done(7) == 5  # a stall at boundary 7 waits for boundary 6
    assert queue.done(8) == 8  # the process has passed the deadline
    queue.blocked = True
    assert queue.done(6) == 5  # until the deadline, room may still become free
    assert queue.done(7) == 7
    assert Queue(Move(0, 1, 1, due=0)).done(3) == 0


def test_demotions_of_the_boundary_run_after_promotions_for_which_the_process_stalls() -> None:
    stalling = Move(1, 2, 0, deadline=7, stalls=True)
    assert [Queue(stalling).due_first(now) for now in (6, 7, 8)] == [6, 6, 8]
    assert Queue(Move(1, 2, 0, deadline=7)).due_first(7) == 7


def test_a_search_for_work_forgets_that_promotions_were_blocked() -> None:
    queue = Queue(Move(0, 1, 1), Move(1, 2, 0, deadline=7, stalls=True))
    queue.blocked = True
    assert queue.next_work(lambda: "demotion", lambda: None, lambda: None) == "demotion"
    assert queue.done(7) < 6


def test_promotions_that_yield_come_last() -> None:
    queue = Queue(Move(0, 1, 0, deadline=5, yields=True), Move(1, 2, 0, deadline=7))
    queue.add(Move(2, 3, 0, deadline=9))
    assert [move.deadline for move in queue.promotions] == [7, 9, 5]


def test_times_wrap_around_the_step() -> None:
    moves = np.zeros(3, MOVE_DTYPE)
    moves["boundary"], moves["deadline"] = [1, 6, 3], [3, 2, 3]
    useful, ahead = np.array([5, 1, 0]), np.array([0, 0, 4])
    assert move_times(moves, 8, useful, ahead) == [
        MoveTimes(1, 0, 2, 5),
        MoveTimes(6, 0, 4, 4),  # useful at least until its deadline
        MoveTimes(7, 4, 8, 8),  # a deadline at the move's own boundary is in the next step
    ]
    assert move_times(moves[:1], 8) == [MoveTimes(1, 0, 2, 2)]
    assert move_times(moves[:1], 8, late=np.ones(1, np.bool_)) == [MoveTimes(1, 0, 2, 2, True)]


def test_a_promotion_that_is_late_by_plan_depends_on_stalls() -> None:
    times = MoveTimes(1, 0, 2, 5)
    assert times.span(9, never) == times.span(9, always) == Span(9, 11, 14)
    late = times._replace(late=True)
    assert (
        late.span(9, always)
        == late.span(9, lambda boundary: boundary == 11)
        == Span(9, 11, 15, stalls=True)
    )
    assert late.span(9, never) == Span(9, 14, 14, yields=True)


def test_a_promotion_is_late_from_its_deadline_on() -> None:
    assert not is_late(Move(0, 1, 0, deadline=11), 10)
    assert is_late(Move(0, 1, 0, deadline=11), 11)
