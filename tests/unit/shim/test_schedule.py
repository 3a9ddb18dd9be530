# SPDX-License-Identifier: Apache-2.0
"""The moves of a layout on paged tiers become due and obsolete as the process passes boundaries."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model import protocol
from sentineld.model.plan import SLOT_DTYPE, Layout
from sentineld.model.protocol import MoveFlag
from sentineld.model.records import PAGE_BYTES, Records
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.layout_wire import pack_layout

TIERS = Tiers((Tier((0,), 1 << 30), Tier((1,), 1 << 40)), 1e9, "paged", paged=True)
ARENA_PAGES = 100
COUNT = 5  # number of boundaries in a step
NOWHERE = (1 << 64) - 1
EVICT = int(MoveFlag.EVICT)

Row = tuple[int, int, int, int]
"""(boundary, deadline, end, flags) of a move; see struct sentinel_move. Deadline and end are
distances from the boundary."""


def table(rows: list[Row], pages: int = 1) -> Records:
    moves = np.zeros(len(rows), protocol.PAGER_MOVE_DTYPE)
    for at, (boundary, deadline, end, flags) in enumerate(rows):
        moves[at] = (at % ARENA_PAGES, pages, boundary, deadline, end, flags, 0)
    return moves


class Schedule:
    """The shim's struct schedule."""

    def __init__(self, harness: ctypes.CDLL, moves: Records) -> None:
        slots, cuts = np.zeros(0, SLOT_DTYPE), np.zeros(0, np.uint32)
        waits = np.full(COUNT, -1, np.int32)
        layout = Layout(slots, cuts, (), waits, ARENA_PAGES * PAGE_BYTES)
        problem = ctypes.c_char_p()
        none = np.zeros(0, protocol.ACCESS_DTYPE)
        descriptor = os.memfd_create("layout")
        os.write(descriptor, pack_layout(layout, 1, TIERS, COUNT, none, None, moves))
        self._harness, self._count = harness, len(moves)
        self._made = harness.test_schedule_new(descriptor, ctypes.byref(problem))
        self.problem = (problem.value or b"").decode()
        os.close(descriptor)

    def at(self, step: int, boundary: int) -> None:
        self._harness.schedule_pass(self._made, step << 32 | boundary)

    def leave(self) -> None:
        self._harness.schedule_pass(self._made, NOWHERE)

    def due(self, evict: bool) -> list[int]:
        rows = (ctypes.c_uint32 * max(self._count, 1))()
        return list(rows[: self._harness.test_schedule_due(self._made, evict, rows)])

    def done(self, evict: bool, pages: int, began: int) -> bool:
        return bool(self._harness.test_schedule_done(self._made, evict, pages, began))

    @property
    def late(self) -> int:
        return int(self._harness.test_schedule_late(self._made))

    def delete(self) -> None:
        if self._made:
            self._harness.test_schedule_delete(self._made)


@contextmanager
def schedule(harness: ctypes.CDLL, moves: Records) -> Iterator[Schedule]:
    made = Schedule(harness, moves)
    yield made
    made.delete()


def test_moves_are_due_at_their_boundaries_and_end(harness: ctypes.CDLL) -> None:
    rows = [(1, 2, 3, 0), (1, 1, 2, EVICT), (2, 1, 5, 0)]
    with schedule(harness, table(rows)) as made:
        assert not made.problem
        made.at(0, 0)
        assert (made.due(True), made.due(False)) == ([], [])
        made.at(0, 1)
        assert (made.due(True), made.due(False)) == ([1], [0])
        # The deadline of rows 0 and 2 is boundary 3 (1 + 2 and 2 + 1), so they keep their order.
        made.at(0, 2)
        assert (made.due(True), made.due(False)) == ([1], [0, 2])
        made.at(0, 3)
        assert (made.due(True), made.due(False)) == ([], [0, 2])
        assert made.late == 0
        made.at(0, 4)
        assert (made.due(False), made.late) == ([2], 1)


def test_a_late_fetch_counts_once(harness: ctypes.CDLL) -> None:
    with schedule(harness, table([(0, 1, 4, 0)], pages=10)) as made:
        made.at(0, 0)
        assert not made.done(False, 4, 4)
        assert made.late == 0
        made.at(0, 1)
        assert not made.done(False, 3, 3)
        assert not made.done(False, 1, 1)
        assert made.late == 1
        made.at(0, 4)
        assert (made.due(False), made.late) == ([], 1)


def test_pages_that_need_no_fetch_are_not_late(harness: ctypes.CDLL) -> None:
    with schedule(harness, table([(0, 1, 4, 0)], pages=10)) as made:
        made.at(1, 0)
        made.at(1, 2)
        assert made.done(False, 10, 0)
        assert (made.due(False), made.late) == ([], 0)


def test_nothing_is_due_while_a_step_diverges(harness: ctypes.CDLL) -> None:
    with schedule(harness, table([(0, 5, 5, EVICT), (1, 5, 5, EVICT), (2, 5, 5, EVICT)])) as made:
        made.at(0, 1)
        made.leave()
        assert made.due(True) == []
        made.at(1, 0)
        assert made.due(True) == [0]


def test_a_late_call_adds_the_moves_of_the_whole_step(harness: ctypes.CDLL) -> None:
    with schedule(harness, table([(0, 5, 5, EVICT), (1, 1, 1, EVICT), (2, 5, 5, EVICT)])) as made:
        made.at(0, 2)  # the first call
        assert made.due(True) == [0, 2]
        made.at(3, 1)  # more than a step later
        assert made.due(True) == [0, 1]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((0, 1, 1, 4), "unknown flags"),
        ((5, 1, 1, 0), "a boundary does not exist"),
        ((0, 0, 1, 0), "deadline or end is out of range"),
        ((0, 6, 1, 0), "deadline or end is out of range"),
        ((0, 1, 0, 0), "deadline or end is out of range"),
        ((0, 1, 6, 0), "deadline or end is out of range"),
    ],
)
def test_impossible_moves_are_refused(harness: ctypes.CDLL, row: Row, problem: str) -> None:
    with schedule(harness, table([row])) as made:
        assert problem in made.problem


@pytest.mark.parametrize(("page", "pages"), [(100, 1), (0, 101), (1 << 63, 1), (99, 1 << 31)])
def test_moves_outside_the_arena_are_refused(harness: ctypes.CDLL, page: int, pages: int) -> None:
    moves = table([(0, 1, 1, 0)])
    moves["page"], moves["pages"] = page, pages
    with schedule(harness, moves) as made:
        assert "a move lies outside its space" in made.problem


def test_unsorted_moves_are_refused(harness: ctypes.CDLL) -> None:
    with schedule(harness, table([(1, 1, 1, 0), (0, 1, 1, 0)])) as made:
        assert "not sorted by boundary" in made.problem


ROWS = st.lists(
    st.tuples(
        st.integers(0, COUNT - 1),
        st.integers(1, COUNT),
        st.integers(1, COUNT),
        st.sampled_from([0, EVICT]),
    ),
    max_size=20,
)


@given(ROWS, st.lists(st.one_of(st.integers(0, COUNT + 2), st.none()), max_size=30))
def test_due_moves_equal_a_model(
    harness: ctypes.CDLL, rows: list[Row], advances: list[int | None]
) -> None:
    """advances: the number of boundaries passed between two calls; None: a divergence."""
    rows = sorted(rows, key=lambda row: row[0])
    with schedule(harness, table(rows)) as made:
        now, begun = 0, 0  # the moves of the boundaries from `begun` to `now` can be due
        follows = False
        for advance in advances:
            if advance is None:
                made.leave()
                follows = False
                continue
            now += advance
            made.at(*divmod(now, COUNT))
            if not follows or advance > COUNT:
                begun, follows = now - now % COUNT, True
            for evict in (False, True):
                model = []
                for passed in range(begun, now + 1):
                    for number, (boundary, deadline, end, flags) in enumerate(rows):
                        is_due = boundary == passed % COUNT and bool(flags) == evict
                        if is_due and passed + end > now:
                            model.append((0 if evict else passed + deadline, passed, number))
                assert made.due(evict) == [number for _, _, number in sorted(model)]
