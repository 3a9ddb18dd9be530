# SPDX-License-Identifier: Apache-2.0
"""The simulator's World (pages, mover, clock) on three cells: two of the arena, one of the heap.

cell      0   1   2
pages     4   4   4
born on   F   s   s     F: fast, s: slow
A page takes 10 ns to move, unless a test sets another rate.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import Space
from sentineld.simulate.cells import Cells
from sentineld.simulate.world import NEVER, Item, World

PAGE_NS = 10.0


def cells() -> Cells:
    nothing = np.zeros(0, np.int64)
    return Cells(
        space=np.array([Space.ARENA, Space.ARENA, Space.HEAP], np.int64),
        first=np.array([0, 4, 0]),
        pages=np.array([4, 4, 4]),
        born_fast=np.array([4, 0, 0]),
        persistent=np.array([False, False, True]),
        dropped=np.array([True, True, False]),
        low=nothing,
        high=nothing,
        dropper=nothing,
        drop_low=nothing,
        drop_high=nothing,
    )


def world(capacity: int | None = 100, page_ns: float = PAGE_NS) -> World:
    """A world in which the pages of all cells are resident."""
    made = World(cells(), capacity, page_ns, page_ns)
    made.born(0, 2)
    made.place(2, 3, np.array([0]))
    return made


def promotion(cell: int, deadline: int = 2, expiry: int = 3, due: int = 0) -> Item:
    return Item(cell, cell + 1, 0, due, deadline, expiry)


def demotion(cell: int, due: int = 0) -> Item:
    return Item(cell, cell + 1, 1, due, NEVER, NEVER)


def tiers(one: World) -> list[tuple[int, int]]:
    return list(zip(one.fast.tolist(), one.slow.tolist(), strict=True))


def test_pages_are_born_on_their_tier() -> None:
    one = world()
    assert tiers(one) == [(4, 0), (0, 4), (0, 4)]
    assert (one.fast_pages, one.room()) == (4, 96)
    # world() gives the heap its pages by place(), which counts no births.
    assert one.counts.born_pages == 8
    assert one.born(0, 2) == 4  # no page is born twice
    assert one.counts.born_pages == 8


def test_births_without_room_are_slow() -> None:
    one = World(cells(), 3, PAGE_NS, PAGE_NS)
    assert one.born(0, 1) == 1
    assert tiers(one)[0] == (3, 1)
    assert (one.room(), one.counts.peak_pages) == (0, 3)
    assert World(cells(), None, PAGE_NS, PAGE_NS).room() == NEVER


def test_dropped_pages_are_absent_and_their_moves_cancelled() -> None:
    one = world()
    one.queue.add(demotion(0))
    one.run(25.0)
    one.dropped(0, 1)
    assert tiers(one)[0] == (0, 0)
    assert one.fast_pages == 0
    assert not one.queue.demotions
    one.run(1000.0)
    assert one.counts.demoted_pages == 2


def test_a_dropped_page_in_flight_frees_its_frame() -> None:
    one = world(capacity=5)
    one.queue.add(promotion(1))
    one.run(5.0)
    assert one.room() == 0
    one.dropped(1, 2)
    assert one.room() == 1


def test_pages_move_one_by_one() -> None:
    one = world()
    one.queue.add(promotion(1))
    for now_ns, arrived in ((9.0, 0), (10.0, 1), (35.0, 3), (40.0, 4), (100.0, 4)):
        one.run(now_ns)
        assert one.now_ns == now_ns
        assert one.counts.promoted_pages == one.fast[1] == arrived
    assert one.counts.busy_ns == 4 * PAGE_NS
    assert one.counts.late_moves == 0


def test_each_direction_has_its_own_rate() -> None:
    one = World(cells(), 100, PAGE_NS, 2.5)
    one.born(0, 2)
    one.queue.add(demotion(0))
    one.queue.add(promotion(1))
    one.run(25.0)
    assert (one.counts.demoted_pages, one.counts.promoted_pages) == (4, 1)
    one.wait_for(0)
    assert one.counts.stall_ns == 0.0


def test_a_wait_ends_when_the_page_in_flight_and_the_demotions_are_done() -> None:
    one = World(cells(), 100, PAGE_NS, 2.5)
    one.born(0, 2)
    one.queue.add(promotion(1))
    one.run(4.0)
    one.queue.add(demotion(0))
    one.wait_for(0)
    assert one.counts.demoted_pages == 4
    # When the wait begins, the page in flight has already been moving for 4 ns.
    assert one.counts.stall_ns == pytest.approx(PAGE_NS - 4.0 + 4 * 2.5)


def test_a_wait_counts_the_page_in_flight_once() -> None:
    one = world()
    awaited = Item(1, 2, 0, 0, 0, NEVER, stalls=True)
    one.queue.add(awaited)
    one.run(4.0)
    one.queue.add(promotion(2))
    one.wait_for(-1)
    assert (one.counts.promoted_pages, int(one.fast[1])) == (4, 4)
    assert one.counts.stall_ns == pytest.approx(4 * PAGE_NS - 4.0)


def test_no_page_moves_while_accesses_use_the_slow_tier() -> None:
    one = world()
    one.queue.add(promotion(1))
    one.occupied(25.0)
    one.run(44.0)
    # In the 44 - 25 = 19 ns after the busy time, one page moves, and the next one begins to move.
    assert tiers(one)[1] == (1, 3)
    one.occupied(10.0)
    one.queue.add(demotion(0))
    one.wait_for(0)
    assert one.counts.demoted_pages == 4
    # The stall consists of the busy time of 10 ns, the remaining 1 ns of the page in flight and the
    # time of the demotions.
    assert one.counts.stall_ns == pytest.approx(10.0 + 1.0 + 4 * PAGE_NS)


def test_slow_pages_that_are_born_keep_moves_from_the_slow_tier() -> None:
    one = World(cells(), 100, PAGE_NS, PAGE_NS)
    one.queue.add(demotion(0))
    one.born(0, 2, busy_ns=5.0)  # cell 1 is born slow: the slow tier is busy for 4 * 5 ns
    one.run(39.0)
    assert one.counts.demoted_pages == 1


def test_a_page_in_flight_takes_a_frame_on_both_tiers() -> None:
    one = world(capacity=6)
    one.queue.add(promotion(1))
    one.run(5.0)
    assert tiers(one)[1] == (0, 4)
    assert (one.room(), one.counts.peak_pages) == (1, 5)
    one.run(1000.0)
    assert tiers(one)[1] == (2, 2)
    assert one.counts.peak_pages == 6


def test_due_demotions_make_room_for_promotions() -> None:
    one = world(capacity=4)
    one.queue.add(promotion(1))
    one.queue.add(demotion(0))
    one.run(80.0)
    assert tiers(one)[:2] == [(0, 4), (4, 0)]
    assert one.counts.peak_pages == 4


def test_promotions_run_before_demotions_that_are_not_due() -> None:
    one = world()
    one.queue.add(demotion(0, due=5))
    one.queue.add(promotion(1))
    one.run(40.0)
    assert (one.counts.promoted_pages, one.counts.demoted_pages) == (4, 0)
    one.run(80.0)
    assert one.counts.demoted_pages == 4


def test_a_promotion_after_its_deadline_is_late_and_ends_at_its_expiry() -> None:
    one = world()
    one.queue.add(promotion(1, deadline=1, expiry=2))
    one.run(10.0)
    assert one.counts.late_moves == 0
    one.boundary = 1
    one.run(20.0)
    assert (one.fast[1], one.counts.late_moves) == (2, 1)
    one.boundary = 2
    one.run(1000.0)
    assert (one.fast[1], one.counts.late_moves) == (2, 1)
    assert not one.queue.promotions


def test_a_promotion_that_never_ran_is_late_once_it_expires() -> None:
    one = world(capacity=4)
    one.queue.add(promotion(1, deadline=1, expiry=2))
    one.boundary = 2
    one.run(10.0)
    assert (one.counts.promoted_pages, one.counts.late_moves) == (0, 1)


def test_a_wait_ends_with_the_demotions_that_are_due() -> None:
    one = world()
    one.queue.add(demotion(0))
    one.run(15.0)
    one.wait_for(0)
    assert one.now_ns == pytest.approx(40.0)
    assert one.counts.stall_ns == pytest.approx(25.0)
    one.queue.add(promotion(1, deadline=0))
    one.wait_for(0)
    assert one.counts.stall_ns == pytest.approx(25.0)
    one.queue.add(replace(promotion(1, deadline=0), stalls=True))
    one.wait_for(0)
    assert one.fast[1] == 4
    assert one.counts.stall_ns == pytest.approx(65.0)


def test_no_wait_for_promotions_without_room() -> None:
    one = world(capacity=4)
    one.queue.add(replace(promotion(1, deadline=0), stalls=True))
    one.wait_for(0)
    assert one.counts.stall_ns == 0.0


def test_no_wait_for_promotions_of_another_boundary() -> None:
    one = world()
    one.queue.add(replace(promotion(1, deadline=1), stalls=True))
    one.wait_for(0)
    one.boundary = 2
    one.wait_for(2)
    assert one.counts.stall_ns == 0.0


def test_without_migration_nothing_moves_and_nothing_waits() -> None:
    one = world(page_ns=float("inf"))
    one.queue.add(demotion(0))
    one.wait_for(0)
    one.run(1e12)
    assert (one.now_ns, one.counts.stall_ns, one.counts.demoted_pages) == (1e12, 0.0, 0)


def test_the_state_does_not_depend_on_the_time() -> None:
    early, late = world(), world()
    late.run(500.0)
    assert early.state() == late.state()
    for one in (early, late):
        one.queue.add(promotion(1, due=one.boundary, deadline=one.boundary + 2))
    late.boundary = 3
    assert early.state() != late.state()
    early.run(early.now_ns + 5.0)
    assert early.state() != world().state()


@given(
    st.integers(0, 12),
    st.lists(
        st.tuples(
            st.sampled_from(["up", "down", "drop", "born", "run", "wait"]),
            st.integers(0, 2),
            st.integers(0, 70),
        ),
        max_size=30,
    ),
)
def test_pages_are_neither_lost_nor_beyond_the_capacity(
    capacity: int, deeds: list[tuple[str, int, int]]
) -> None:
    one = World(cells(), capacity, PAGE_NS, PAGE_NS)
    one.born(0, 2)
    one.place(2, 3, np.array([4]))
    begun_ns = 0.0
    for deed, cell, number in deeds:
        if deed == "up":
            now = one.boundary
            wanted = promotion(cell, now + number % 3, now + number % 3 + 1, now)
            one.queue.add(replace(wanted, stalls=number % 2 == 0))
        elif deed == "down":
            one.queue.add(demotion(cell, one.boundary + number % 3))
        elif deed == "drop":
            one.dropped(cell, cell + 1)
        elif deed == "born":
            one.born(cell, cell + 1)
        elif deed == "run":
            one.run(one.now_ns + number)
            one.boundary += number % 2
        else:
            one.wait_for(one.boundary)
            assert not any(
                one.fast[item.low].any() for item in one.queue.due_demotions(one.boundary)
            )
        pages = one.fast + one.slow
        assert set(pages.tolist()) <= {0, 4}
        assert (one.fast >= 0).all()
        assert (one.slow >= 0).all()
        assert one.fast_pages == one.fast.sum() <= capacity
        assert one.counts.peak_pages <= capacity
        assert one.now_ns >= begun_ns
        begun_ns = one.now_ns
    moved = one.counts.promoted_pages + one.counts.demoted_pages
    assert one.counts.busy_ns == moved * PAGE_NS <= one.now_ns + 1e-6


def paged(capacity: int = 100) -> World:
    """A paged world: a page is fetched in 10 ns and written in 5 ns."""
    made = World(cells(), capacity, PAGE_NS, 5.0, paged=True)
    made.place(2, 3, np.array([0]))
    return made


def access(
    one: World, cell: int, cost_ns: float = 0.0, written: bool = False, touched: float = 1.0
) -> None:
    """Begin a stretch that touches a share of a cell's pages. cost_ns: time to fetch a page."""
    costs, shares, changed, back = (np.zeros(3) for _ in range(4))
    costs[cell], shares[cell], back[cell] = cost_ns * touched, touched, 5.0 * touched * written
    changed[cell] = written
    one.accessed(costs, shares, changed > 0, back)


def rest(one: World) -> None:
    """Begin a stretch that uses no cell."""
    one.accessed(np.zeros(3), np.zeros(3), np.zeros(3, np.bool_), np.zeros(3))


def test_faults_delay_moves_on_paged_tiers() -> None:
    one = paged()
    one.born(0, 1)
    access(one, 2, cost_ns=10.0)
    one.queue.add(demotion(0))
    one.run(40.0)
    assert one.counts.demoted_pages == 0
    one.run(60.0)
    assert one.counts.demoted_pages == 4


def test_a_page_that_a_fault_fetches_stays_if_its_promotion_is_queued() -> None:
    one = paged()
    one.queue.add(promotion(2))
    access(one, 2, cost_ns=10.0)
    assert tiers(one)[2] == (4, 0)
    assert one.clean[2] == 4
    assert one.counts.promoted_pages == 0


def test_a_fault_on_a_part_of_a_cell_fetches_only_this_part() -> None:
    one = paged()
    one.queue.add(promotion(2))
    access(one, 2, cost_ns=10.0, written=True, touched=0.5)
    assert tiers(one)[2] == (2, 2)
    # The fault fetches two pages in 20 ns. They stay in memory, so they are not written back. Then
    # the other two pages are promoted.
    one.run(20.0)
    assert tiers(one)[2] == (2, 2)
    one.run(40.0)
    assert tiers(one)[2] == (4, 0)
    assert one.counts.promoted_pages == 2


def test_a_changed_page_that_does_not_stay_is_written_back() -> None:
    one = paged()
    one.born(0, 1)
    access(one, 2, cost_ns=10.0, written=True)
    one.queue.add(demotion(0))
    one.run(60.0)  # 40 ns to fetch four pages and 20 ns to write them back
    assert one.counts.demoted_pages == 0
    one.run(65.0)
    assert one.counts.demoted_pages == 1


def test_clean_pages_are_demoted_in_no_time_and_written_pages_are_not() -> None:
    for written, late in ((False, 4), (True, 0)):
        one = paged()
        one.queue.add(promotion(2))
        one.run(40.0)
        assert (one.fast[2], one.clean[2]) == (4, 4)
        access(one, 2, written=written)
        rest(one)
        one.queue.add(demotion(2))
        one.run(41.0)
        assert one.slow[2] == late
        assert one.counts.demoted_pages == 0
        one.run(60.0)
        assert one.slow[2] == 4
        assert one.counts.demoted_pages == 4 - late


def test_pages_in_use_are_not_demoted() -> None:
    one = paged()
    one.queue.add(promotion(2))
    one.run(40.0)
    access(one, 2, cost_ns=1.0)
    one.queue.add(demotion(2))
    one.run(100.0)
    assert one.fast[2] == 4
    rest(one)
    one.run(101.0)
    assert one.slow[2] == 4


def test_a_birth_waits_for_frames_of_pages_that_are_being_written() -> None:
    one = paged(capacity=4)
    one.cells.born_fast[1] = 4
    one.born(0, 1)
    one.queue.add(demotion(0))
    one.run(10.0)
    assert one.born(1, 2) == 0
    assert one.counts.stall_ns == 10.0
    assert tiers(one)[:2] == [(0, 4), (4, 0)]


def newborn(capacity: int = 100) -> World:
    """A paged world in which cell 0 was born fast and cell 1 slow, and a demotion of cell 0 is
    queued. Only cell 1 is accessed. The faults on it take 1 ns for each of its four pages."""
    one = paged(capacity)
    one.born(0, 1)
    one.born(1, 2, busy_ns=1.0)
    one.queue.add(demotion(0))
    return one


def test_slow_births_are_written_after_the_stretch_of_their_birth() -> None:
    one = newborn()
    one.run(4.0)
    rest(one)
    one.run(24.0)  # the write of cell 1 takes 5 ns for each page
    assert one.counts.demoted_pages == 0
    one.run(29.0)
    assert one.counts.demoted_pages == 1


def test_slow_births_that_die_in_their_stretch_are_not_written() -> None:
    one = newborn()
    one.run(4.0)
    one.dropped(1, 2)
    rest(one)
    one.run(9.0)
    assert one.counts.demoted_pages == 1


def test_slow_births_without_free_frames_are_written_at_once() -> None:
    one = newborn(capacity=7)  # cell 0 takes four frames, so one page of cell 1 gets none
    one.run(9.0)
    assert one.counts.demoted_pages == 0
    one.run(14.0)
    assert one.counts.demoted_pages == 1


def test_pages_are_not_demoted_in_the_stretch_of_their_birth_if_it_uses_them() -> None:
    one = paged()
    one.born(0, 1, busy_ns=1.0)
    one.queue.add(demotion(0))
    one.run(20.0)
    assert one.counts.demoted_pages == 0
    rest(one)
    one.run(25.0)
    assert one.counts.demoted_pages == 1


def test_accesses_to_slow_pages_of_a_former_tensor_delay_moves() -> None:
    one = paged()
    one.born(0, 2)
    rest(one)
    one.queue.add(demotion(0))
    # The new tensor is born on the slow pages of cell 1. The faults on these pages take 4 ns, and
    # the demotion of a page takes 5 ns.
    one.born(1, 2, busy_ns=1.0)
    one.run(8.0)
    assert one.counts.demoted_pages == 0
    one.run(9.0)
    assert one.counts.demoted_pages == 1


def test_slow_births_that_are_not_accessed_are_not_written() -> None:
    one = paged()
    one.born(0, 2)
    one.queue.add(demotion(0))
    rest(one)
    one.run(5.0)
    assert one.counts.demoted_pages == 1


def test_a_stretch_ends_when_the_pages_to_be_written_fit_into_the_free_frames() -> None:
    one = paged(capacity=7)
    one.born(0, 1)
    access(one, 2, cost_ns=10.0, written=True)
    # Four changed pages are to be written, but only three frames are free: the stretch ends when
    # one of the pages is written, which takes 5 ns.
    one.run(40.0)
    one.wait_for_writes()
    assert (one.now_ns, one.counts.stall_ns) == (45.0, 5.0)
    one.wait_for_writes()
    assert one.now_ns == 45.0


@given(
    st.lists(st.tuples(st.sampled_from("pdaxb"), st.integers(0, 2), st.floats(0, 60)), max_size=30),
    st.integers(1, 12),
)
def test_paged_counts_stay_consistent(events: list[tuple[str, int, float]], capacity: int) -> None:
    one = paged(capacity)
    one.born(0, 2)
    for kind, cell, ns in events:
        if kind == "p":
            one.queue.add(promotion(cell, deadline=NEVER, expiry=NEVER))
        elif kind == "d":
            one.queue.add(demotion(cell))
        elif kind == "b":
            one.dropped(cell, cell + 1) if cell < 2 else None
            one.born(cell, cell + 1, 1.0)
        else:
            access(one, cell, cost_ns=ns, written=kind == "x")
        one.run(one.now_ns + ns)
        one.wait_for_writes()
        assert (one.clean >= 0).all()
        assert (one.clean <= one.fast).all()
        assert (one.fast + one.slow == one.cells.pages).all()
        assert one.fast_pages == one.fast.sum() <= capacity


def test_a_stall_does_not_wait_for_the_demotions_of_its_own_boundary() -> None:
    # The demotion was queued ahead of time, and is due at the boundary at which the process stalls.
    one = world()
    one.boundary = 2
    one.queue.add(demotion(0, due=2))
    one.queue.add(replace(promotion(1, deadline=2, expiry=5), stalls=True))
    one.wait_for(1)
    assert one.counts.stall_ns == pytest.approx(4 * PAGE_NS)
    assert (one.counts.promoted_pages, one.counts.demoted_pages) == (4, 0)
