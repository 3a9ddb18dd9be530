# SPDX-License-Identifier: Apache-2.0
"""The moves that the schedule chooses, for training steps with few boundaries.

Schedule.done() returns the last position (step << 32 | boundary) up to which all moves that
barriers wait for are complete. In step 0, a position equals the boundary's number.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.batches import TRIES, Schedule
from sentineld.migrate.pending import Batch, Pages, Pending
from sentineld.model.arrays import Table
from sentineld.model.plan import MOVE_DTYPE
from sentineld.plan.expected import DROP_DTYPE
from sentineld.plan.move_queue import move_times

PAGE = 4096
PLENTY = 1 << 40
NO_DROPS = np.zeros(0, DROP_DTYPE)


class World:
    """A schedule, and 64 pages in one space. move() moves a batch's pages immediately, except those
    in `pinned`."""

    def __init__(
        self,
        rows: list[tuple[int, int, int, int, int]],
        count: int,
        useful: list[int] | None = None,
        ahead: list[int] | None = None,
        late: bool = False,
        stalls: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """rows: (boundary, deadline, tier, first page, pages). count: number of boundaries. useful,
        ahead: see move_times(). late: whether all moves are late by plan. stalls: see Schedule."""
        moves = np.zeros(len(rows), MOVE_DTYPE)
        for row, (boundary, deadline, tier, first, pages) in enumerate(rows):
            moves[row] = (boundary, deadline, row, 0, tier, first * PAGE, pages * PAGE)
        self.tier = np.zeros(64, dtype=np.int64)
        self.pinned: set[int] = set()
        self.cancelled: list[tuple[int, str]] = []
        self.schedule = Schedule(
            moves,
            move_times(
                moves,
                count,
                np.array(useful) if useful is not None else None,
                np.array(ahead) if ahead is not None else None,
                np.full(len(moves), late),
            ),
            count,
            self.pages_of,
            lambda move, why: self.cancelled.append((move.offset // PAGE, why)),
            stalls=stalls,
        )

    def pages_of(self, move: Pending) -> Pages:
        first = move.offset // PAGE
        part = self.tier[first : first + move.bytes // PAGE]
        return np.flatnonzero((part >= 0) & (part != move.tier)) + first

    def next(
        self,
        room: int = PLENTY,
        free: int = PLENTY,
        pages: int = 1024,
        ahead: int | None = None,
        exact: bool = False,
    ) -> Batch | None:
        return self.schedule.next_batch(lambda: room, lambda _: free, pages, ahead, exact)

    def move(self, batch: Batch) -> None:
        for move, pages in batch.parts:
            stuck = [page for page in pages.tolist() if page in self.pinned]
            self.tier[[page for page in pages.tolist() if page not in self.pinned]] = batch.tier
            move.moved_bytes += (len(pages) - len(stuck)) * PAGE
            if stuck:
                self.schedule.left_behind(move, np.array(stuck), "busy")

    def drain(self, room: int = PLENTY) -> list[tuple[int, list[int]]]:
        done = []
        while (batch := self.next(room)) is not None:
            pages = [page for _, part in batch.parts for page in part.tolist()]
            done.append((batch.tier, pages))
            self.move(batch)
        return done


def test_demotions_go_before_promotions_and_share_a_batch() -> None:
    world = World([(1, 3, 0, 0, 2), (1, 2, 1, 8, 2), (1, 2, 1, 16, 1)], count=4)
    world.tier[0:2] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.drain() == [(1, [8, 9, 16]), (0, [0, 1])]


def test_a_batch_has_pages_of_several_moves() -> None:
    rows = [(1, 2, 1, 0, 6), (1, 2, 1, 8, 1), (1, 2, 1, 16, 1), (1, 2, 1, 24, 3)]
    world = World(rows, count=4)
    world.schedule.pass_boundary(NO_DROPS)
    taken = []
    ends = []
    while (batch := world.next(pages=4)) is not None:
        taken.append([pages.tolist() for _, pages in batch.parts])
        ends.append((batch.ends_move, batch.clipped(1).ends_move, batch.clipped(2).ends_move))
        world.move(batch)
        world.schedule.moved(batch)
    assert taken == [[[0, 1, 2, 3]], [[4, 5], [8], [16]], [[24, 25, 26]]]
    assert ends == [
        (False, False, False),
        (True, False, True),
        (True, False, False),
    ]
    assert world.schedule.done() == 1


def test_early_demotions_make_small_batches_while_promotions_have_no_room() -> None:
    world = World([(1, 2, 0, 0, 6), (3, 0, 1, 8, 6)], count=4, ahead=[0, 2])
    world.tier[0:6] = 1
    world.schedule.pass_boundary(NO_DROPS)
    batch = world.next(room=0, pages=8, ahead=2)
    assert (batch.tier, batch.pages) == (1, 2)
    alone = World([(3, 0, 1, 8, 6)], count=4, ahead=[2])
    alone.schedule.pass_boundary(NO_DROPS)
    assert alone.next(pages=8, ahead=2).pages == 6


def test_an_exact_batch_ends_with_the_demotions_that_the_process_may_wait_for() -> None:
    """exact=True says that batches have no overhead, so short batches cost nothing. Therefore the
    demotions of boundary 1 and those of boundary 2 are moved in separate batches: in a common
    batch, a process that waits for boundary 1 would also wait for the demotions of boundary 2."""
    rows = [(1, 3, 1, 0, 2), (1, 3, 1, 4, 1), (2, 3, 1, 8, 2), (3, 0, 1, 16, 2), (0, 1, 1, 24, 2)]
    world = World(rows, count=4, ahead=[0, 0, 0, 1, 2])
    world.schedule.pass_boundary(NO_DROPS)
    world.schedule.pass_boundary(NO_DROPS)
    taken = []
    done = []
    while (batch := world.next(exact=True)) is not None:
        taken.append([pages.tolist() for _, pages in batch.parts])
        world.move(batch)
        world.schedule.moved(batch)
        done.append(world.schedule.done())
    # The last batch consists of demotions ahead of time, for which no process waits yet.
    assert taken == [[[0, 1], [4]], [[8, 9]], [[16, 17], [24, 25]]]
    assert done == [1, 2, 2]


def test_an_exact_batch_ends_with_the_promotions_for_which_the_process_stalls() -> None:
    rows = [(1, 2, 0, 0, 2), (1, 3, 0, 8, 2)]
    world = World(rows, count=4, useful=[2, 2], late=True, stalls=lambda boundary: boundary == 2)
    world.tier[0:10] = 1
    world.schedule.pass_boundary(NO_DROPS)
    batch = world.next(exact=True)
    assert [pages.tolist() for _, pages in batch.parts] == [[0, 1]]


def test_done_waits_for_demotions_only() -> None:
    world = World([(1, 3, 0, 0, 2), (2, 3, 1, 8, 2)], count=4)
    world.tier[0:2] = 1
    world.schedule.now = 4
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 1 << 32 | 1  # done() ignores the pending promotion
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 1 << 32 | 1
    world.move(world.next(room=0))
    assert world.next(room=0) is None
    assert world.schedule.done() == 1 << 32 | 2


def test_finished_demotions_are_done_before_the_next_batch() -> None:
    world = World([(1, 2, 1, 0, 4), (2, 3, 1, 8, 2)], count=4)
    for _ in range(2):
        world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 0
    batch = world.next(pages=3)
    world.move(batch)
    world.schedule.moved(batch)
    assert world.schedule.done() == 0  # a page of the first demotion remains
    batch = world.next(pages=2)
    world.move(batch)
    world.schedule.moved(batch)
    assert world.schedule.done() == 1  # a page of the second demotion remains
    world.pinned = {9}
    batch = world.next()
    world.move(batch)
    world.schedule.moved(batch)
    assert world.schedule.done() == 1


def test_promotions_wait_for_room_and_are_clipped_to_it() -> None:
    world = World([(1, 3, 0, 0, 8)], count=4)
    world.tier[0:8] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next(room=PAGE - 1) is None
    assert world.next(free=PAGE - 1) is None
    batch = world.next(room=3 * PAGE)
    assert batch is not None
    assert batch.parts[0][1].tolist() == [0, 1, 2]


def test_earliest_deadline_first() -> None:
    world = World([(1, 0, 0, 0, 2), (1, 2, 0, 8, 2)], count=4)
    world.tier[:] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.drain() == [(0, [8, 9, 0, 1])]


def test_a_late_promotion_is_cancelled_after_the_last_use() -> None:
    world = World([(1, 2, 0, 0, 2)], count=8, useful=[1])
    world.tier[0:2] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next(room=0) is None
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next() is None
    assert world.cancelled == [(0, "late")]


def test_a_late_promotion_runs_until_the_last_use() -> None:
    world = World([(1, 2, 0, 0, 2)], count=8, useful=[5])
    world.tier[0:2] = 1
    for _ in range(4):
        world.schedule.pass_boundary(NO_DROPS)
        assert world.next(room=0) is None
    batch = world.next()
    assert batch is not None
    assert batch.parts[0][0].late
    world.schedule.pass_boundary(NO_DROPS)
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next() is None
    assert world.cancelled == [(0, "late")]


def test_deadlines_wrap_around_the_step() -> None:
    world = World([(6, 1, 0, 0, 2)], count=8)
    world.tier[0:2] = 1
    world.schedule.now = 8 * 7 + 5
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.queue.promotions[0].deadline == 8 * 8 + 1


def test_a_demotion_cancels_promotions_that_it_overlaps() -> None:
    world = World([(1, 5, 0, 0, 4), (2, 5, 1, 3, 4)], count=8)
    world.tier[0:3] = 1
    world.schedule.pass_boundary(NO_DROPS)
    world.schedule.pass_boundary(NO_DROPS)
    assert world.cancelled == [(0, "superseded")]
    assert world.drain() == [(1, [3, 4, 5, 6])]


def test_a_promotion_cancels_demotions_that_it_covers() -> None:
    world = World([(1, 2, 1, 1, 2), (2, 3, 0, 0, 4)], count=8)
    world.schedule.pass_boundary(NO_DROPS)
    world.schedule.pass_boundary(NO_DROPS)
    assert world.cancelled == [(1, "superseded")]
    assert world.schedule.done() == 2
    assert world.drain() == []


def test_a_drop_cancels_the_moves_that_it_covers() -> None:
    world = World([(1, 2, 1, 1, 2), (1, 2, 1, 5, 2)], count=8)
    world.schedule.pass_boundary(NO_DROPS)
    world.schedule.pass_boundary(np.array([(1, 0, 4 * PAGE)], DROP_DTYPE))
    assert world.cancelled == [(1, "absent")]
    assert [move.offset for move in world.schedule.queue.demotions] == [5 * PAGE]


def test_rejoining_queues_the_moves_of_the_last_cycle() -> None:
    # D: demotion, P: promotion
    # boundary      0   1   2   3
    # pages 0-7     .   D   .   P    useful until boundary 1 of the next step
    # pages 8-15    D   .   .   .    dead after stretch 1
    # pages 16-23   D   .   .   .
    world = World([(0, 1, 1, 8, 8), (0, 1, 1, 16, 8), (1, 2, 1, 0, 8), (3, 1, 0, 0, 8)], 4)
    dead = np.array([(1, 8 * PAGE, 8 * PAGE)], DROP_DTYPE)

    def drops_of(stretch: int) -> Table:
        return dead[dead["stretch"] == stretch]

    world.schedule.rejoin(7 * 4 + 2, drops_of)
    assert world.drain() == [(1, [*range(16, 24), *range(8)])]
    world.tier[:24] = 0
    world.schedule.rejoin(9 * 4, drops_of)
    assert world.drain() == [(1, list(range(8, 24)))]
    world.tier[:24] = 1
    world.schedule.rejoin(11 * 4, drops_of)
    assert world.drain() == [(0, list(range(8)))]
    assert not world.cancelled


def test_moves_of_misplaced_pages_outlive_the_moves_of_the_plan() -> None:
    count = 8
    world = World([(1, 3, 1, 0, 4), (2, 4, 0, 8, 4)], count)
    world.tier[8:24] = 1
    for _ in range(3):
        world.schedule.pass_boundary(NO_DROPS)
    world.tier[32:36] = 0
    rows = [(0, 0, 9, 0, 0, 16 * PAGE, 4 * PAGE), (0, 0, 9, 0, 1, 32 * PAGE, 4 * PAGE)]
    misplaced = [world.schedule.move_now(row, "heal") for row in np.array(rows, MOVE_DTYPE)]
    for move in misplaced:
        world.schedule.queue.add(move)
    world.schedule.cancel_planned(until=10 * count)
    assert sorted(world.cancelled) == [(0, "superseded"), (8, "superseded")]
    world.schedule.now = 9 * count
    assert world.drain() == [(1, [32, 33, 34, 35]), (0, [16, 17, 18, 19])]
    assert not any(move.late for move in misplaced)


def test_a_demotion_runs_ahead_of_time_if_nothing_else_can_run() -> None:
    # D: demotion, P: promotion
    # boundary      1   2   3
    # pages 0-1     .   .   D    may begin at boundary 1
    # pages 8-9     D   .   .
    # pages 16-17   P   .   .
    rows = [(1, 2, 1, 8, 2), (1, 3, 0, 16, 2), (3, 4, 1, 0, 2)]
    world = World(rows, count=8, ahead=[0, 0, 2])
    world.tier[16:18] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.drain() == [(1, [8, 9]), (0, [16, 17]), (1, [0, 1])]
    # The early demotion is finished. So done() returns the current boundary, both before the
    # demotion is due and when it is due.
    assert world.schedule.done() == 1
    for _ in range(2):
        world.schedule.pass_boundary(NO_DROPS)
    assert world.next() is None
    assert world.schedule.done() == 3


def test_an_unfinished_early_demotion_delays_done_only_when_it_is_due() -> None:
    world = World([(3, 4, 1, 0, 2)], count=8, ahead=[2])
    world.schedule.pass_boundary(NO_DROPS)
    batch = world.next(pages=1)
    assert batch is not None
    assert batch.parts[0][1].tolist() == [0]
    world.move(batch)
    assert world.schedule.done() == 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 2
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 2
    assert world.drain() == [(1, [1])]
    assert world.schedule.done() == 3


def test_early_demotions_make_room_for_promotions_and_yield_to_them() -> None:
    rows = [(1, 3, 0, 16, 2), (3, 4, 1, 0, 4)]
    world = World(rows, count=8, ahead=[0, 2])
    world.tier[16:18] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next(room=0, pages=2).parts[0][1].tolist() == [0, 1]
    assert world.next(pages=2).parts[0][1].tolist() == [16, 17]


def test_due_demotions_run_before_early_ones() -> None:
    rows = [(2, 3, 1, 8, 2), (3, 4, 1, 0, 2), (4, 5, 1, 16, 2)]
    world = World(rows, count=8, ahead=[0, 2, 3])
    world.schedule.pass_boundary(NO_DROPS)
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next(pages=1).parts[0][1].tolist() == [8]
    assert world.schedule.done() == 1


def test_a_full_node_cancels_due_demotions_but_not_early_ones() -> None:
    world = World([(1, 2, 1, 0, 4), (3, 4, 1, 8, 4)], count=8, ahead=[0, 2])
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next(free=0) is None
    assert world.cancelled == [(0, "no-memory")]
    assert world.drain() == [(1, [8, 9, 10, 11])]


def test_rejoining_queues_early_demotions() -> None:
    world = World([(3, 4, 1, 0, 2)], count=8, ahead=[4])
    world.schedule.rejoin(2 * 8 + 1, lambda _: NO_DROPS)
    assert world.schedule.done() == 2 << 32 | 1
    assert world.drain() == [(1, [0, 1])]


def test_pinned_pages_are_retried_last_and_then_given_up() -> None:
    world = World([(1, 2, 1, 0, 4)], count=8)
    world.pinned = {0, 1}
    world.schedule.pass_boundary(NO_DROPS)
    tried = []
    while (batch := world.next(pages=2)) is not None:
        tried.append(batch.parts[0][1].tolist())
        world.move(batch)
    assert tried == [[0, 1], [2, 3], *[[0, 1]] * (TRIES - 1)]
    assert world.cancelled == [(0, "busy")]
    assert world.schedule.done() == 1


def test_done_does_not_wait_for_demotions_to_a_full_node() -> None:
    world = World([(1, 2, 1, 0, 4)], count=8)
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next(free=0) is None
    assert world.cancelled == [(0, "no-memory")]
    assert world.schedule.done() == 1


def test_pages_already_on_their_tier_make_no_batch() -> None:
    world = World([(1, 2, 1, 0, 4)], count=8)
    world.tier[0:4] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.next() is None
    assert world.cancelled == [(0, "already-there")]


def test_a_diverged_position_stays_inside_its_step() -> None:
    world = World([], count=8)
    assert world.schedule.absolute(3 << 32 | 0xFFFFFFFF) == 3 * 8 + 7


@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 7), st.integers(0, 7), st.integers(0, 1), st.integers(0, 55),
            st.integers(1, 8),
        ),
        max_size=12,
    ),
    rooms=st.lists(st.integers(0, 6), min_size=24, max_size=24),
    pinned=st.sets(st.integers(0, 63), max_size=6),
    aheads=st.lists(st.integers(0, 7), min_size=12, max_size=12),
)  # fmt: skip
def test_every_demotion_ends_at_its_own_boundary(
    rows: list[tuple[int, int, int, int, int]],
    rooms: list[int],
    pinned: set[int],
    aheads: list[int],
) -> None:
    rows = sorted(rows)
    ahead = [may if row[2] else 0 for may, row in zip(aheads, rows, strict=False)]
    world = World(rows, count=8, ahead=ahead)
    world.pinned = pinned
    for room in rooms:
        world.schedule.pass_boundary(NO_DROPS)
        left = room
        while (batch := world.next(room=left * PAGE, pages=4)) is not None:
            assert 0 < batch.pages <= 4
            if batch.tier == 0:
                assert all(move.due > world.schedule.now for move in world.schedule.queue.demotions)
                assert batch.pages <= left
                left -= batch.pages
            world.move(batch)
        assert not world.schedule.queue.demotions
        assert world.schedule.absolute(world.schedule.done()) == world.schedule.now
        for move in world.schedule.queue.promotions:
            assert move.deadline > world.schedule.now


def test_a_batch_is_clipped_to_the_node_s_free_pages() -> None:
    world = World([(1, 2, 1, 0, 4), (1, 2, 1, 8, 4)], count=8)
    world.schedule.pass_boundary(NO_DROPS)
    batch = world.next(free=6 * PAGE)
    assert batch is not None
    assert [pages.tolist() for _, pages in batch.parts] == [[0, 1, 2, 3], [8, 9]]
    batch = world.next(free=2 * PAGE)
    assert batch is not None
    assert [pages.tolist() for _, pages in batch.parts] == [[0, 1]]


def test_a_process_that_stalls_waits_at_the_deadline_of_a_promotion() -> None:
    # The process stalls at boundary 3, the promotion's deadline, until done() returns at least 2,
    # the boundary before the deadline. done() returns less than 2 until the promotion is finished.
    world = World([(1, 3, 0, 0, 2)], count=4, late=True)
    world.schedule.stalls = lambda boundary: boundary == 3
    world.tier[0:2] = 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 1
    world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 1
    batch = world.next()
    assert batch is not None
    assert not batch.parts[0][0].late  # late by plan, so not counted as a late move
    world.move(batch)
    assert world.next() is None
    assert world.schedule.done() == 3


def test_a_process_that_stalls_does_not_wait_without_room() -> None:
    world = World([(1, 3, 0, 0, 2)], count=4, late=True)
    world.schedule.stalls = lambda boundary: boundary == 3
    world.tier[0:2] = 1
    for _ in range(3):
        world.schedule.pass_boundary(NO_DROPS)
    assert world.next(room=0) is None
    assert world.schedule.done() == 3


def test_if_the_process_does_not_stall_other_promotions_go_first() -> None:
    # The promotion of pages 0-1 is late by plan. The promotion of pages 8-9 is not late by plan, so
    # it goes first, although its boundary and its deadline are later.
    world = World([(1, 2, 0, 0, 2), (2, 6, 0, 8, 2)], count=8, useful=[2, 4], late=True)
    first, second = world.schedule.times
    world.schedule.times = [first, second._replace(late=False)]
    world.tier[0:10] = 1
    for _ in range(2):
        world.schedule.pass_boundary(NO_DROPS)
    assert world.schedule.done() == 2
    batch = world.next(pages=2)
    assert batch is not None
    assert [pages.tolist() for _, pages in batch.parts] == [[8, 9]]


def test_a_stall_does_not_include_the_demotions_of_its_own_boundary() -> None:
    # The promotion of pages 0-1 and the demotion of pages 4-5 begin at boundary 2; the deadline of
    # both is boundary 3. The demotion of pages 8-9 begins at boundary 3.
    rows = [(2, 3, 0, 0, 2), (2, 3, 1, 4, 2), (3, 4, 1, 8, 2)]
    world = World(rows, count=4, late=True)
    promotion, *demotions = world.schedule.times
    world.schedule.times = [promotion, *(times._replace(late=False) for times in demotions)]
    world.schedule.stalls = lambda boundary: boundary == 3
    world.tier[0:2] = 1
    for _ in range(2):
        world.schedule.pass_boundary(NO_DROPS)
    # In stretch 2, the promotion finds no room. There is room once pages 4-5 are demoted.
    world.schedule.queue.blocked = True
    assert world.schedule.done() == 1
    world.schedule.pass_boundary(NO_DROPS)
    moved = []
    for expected in (1, 2, 3):
        batch = world.next()
        assert batch is not None
        world.move(batch)
        world.schedule.moved(batch)
        moved += [page for _, pages in batch.parts for page in pages.tolist()]
        assert world.schedule.done() == expected
    assert moved == [4, 5, 0, 1, 8, 9]
