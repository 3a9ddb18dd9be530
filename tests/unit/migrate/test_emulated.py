# SPDX-License-Identifier: Apache-2.0
"""Emulated memory, compared with a model: births, moves and drops determine a page's node."""

from __future__ import annotations

import errno
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.clock import Clock
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.protocol import FLIGHT_RANGES
from sentineld.model.tiers import Tier, Tiers
from tests.unit.residency import ToyResidency

PAGE = 4096
PAGES = 12
STARTS = {Space.ARENA: 1 << 30, Space.HEAP: 1 << 31}
SPACES = {space: (start, PAGES * PAGE) for space, start in STARTS.items()}
TIERS = Tiers((Tier((0,), 7 * PAGE), Tier((1,), 9 * PAGE)), 1e9, "emulated:test")


def residency_of(pages: int = PAGES, room: int | None = None) -> ToyResidency:
    """Empty maps of both spaces, with this number of pages each. room: see ToyResidency."""
    return ToyResidency({space: np.zeros(pages, np.uint8) for space in STARTS}, PAGE, room)


def memory(
    bytes_per_s: float = 1e15, room: int | None = None, clock: Clock | None = None
) -> tuple[EmulatedMemory, ToyResidency]:
    """Emulated memory, and what it shares with its process."""
    residency = residency_of(room=room)
    return EmulatedMemory(residency, SPACES, TIERS, TokenBucket(bytes_per_s), clock), residency


def addresses(pages: list[tuple[Space, int]]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array([STARTS[space] + page * PAGE for space, page in pages], np.uint64)


class VirtualClock(Clock):
    """A clock that only sleep() advances."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, duration_ns: int) -> None:
        self._now_ns += duration_ns


PLACES = st.tuples(st.sampled_from(list(STARTS)), st.integers(0, PAGES - 1))
TURNS = st.lists(
    st.tuples(
        st.sampled_from(["born", "dropped", "moved"]),
        st.integers(0, 1),
        st.lists(PLACES, unique=True, max_size=2 * PAGES),
    ),
    max_size=20,
)


@given(TURNS)
def test_pages_are_on_the_node_of_their_birth_or_last_move(
    turns: list[tuple[str, int, list[tuple[Space, int]]]],
) -> None:
    pages, residency = memory()
    maps = residency.maps
    model: dict[tuple[Space, int], int] = {}
    for what, node, places in turns:
        if what == "moved":
            result = pages.move_pages(addresses(places), node)
            model |= dict.fromkeys(model.keys() & set(places), node)
            assert result.error == 0
            expected = [model.get(place, -errno.ENOENT) for place in places]
            assert result.status.tolist() == expected
        for space, page in places:
            # The process itself writes births and drops to the map.
            if what == "born" and (space, page) not in model:
                maps[space][page] = 1 + node
                model[space, page] = node
            elif what == "dropped":
                maps[space][page] = 0
                model.pop((space, page), None)
    everywhere = [(space, page) for space in STARTS for page in range(PAGES)]
    status = pages.query_pages(addresses(everywhere)).tolist()
    assert status == [model.get(place, -errno.ENOENT) for place in everywhere]


def test_invalid_entries_of_the_process_are_absent_pages() -> None:
    pages, residency = memory()
    maps = residency.maps
    maps[Space.HEAP][:4] = [1, 2, 3, 255]
    wanted = addresses([(Space.HEAP, page) for page in range(4)])
    absent = -errno.ENOENT
    assert pages.query_pages(wanted).tolist() == [0, 1, absent, absent]
    assert pages.move_pages(wanted, 0).status.tolist() == [0, 0, absent, absent]
    assert maps[Space.HEAP][:4].tolist() == [1, 1, 3, 255]


def test_changes_of_the_fast_pages_are_reported() -> None:
    pages, residency = memory()
    residency.maps[Space.ARENA][:5] = [1, 2, 2, 0, 9]
    wanted = addresses([(Space.ARENA, page) for page in range(5)])
    for node in (0, 0, 1):
        pages.move_pages(wanted, node)
    assert residency.changes == [2, 0, -3]
    # The constructor reports that 0 pages are in flight. A call that moves pages to the fast tier
    # reports their number when it begins: 2 in the first call, 0 in the second. Each call reports 0
    # when it ends.
    assert residency.in_flight == [0, 2, 0, 0, 0, 0]


def test_a_full_fast_tier_takes_the_first_pages_only() -> None:
    pages, residency = memory(room=2)
    maps = residency.maps
    maps[Space.ARENA][:5] = [2, 1, 2, 2, 0]
    wanted = addresses([(Space.ARENA, page) for page in range(5)])
    found = pages.move_pages(wanted, 0)
    assert found.status.tolist() == [0, 0, 0, 1, -errno.ENOENT]
    assert found.error == errno.ENOMEM
    assert maps[Space.ARENA][:5].tolist() == [1, 1, 1, 2, 0]
    assert residency.in_flight == [0, 3, 2, 0]
    assert pages.move_pages(wanted[:3], 1).error == 0


def test_an_interrupted_move_moves_the_pages_for_which_there_was_time() -> None:
    second_ns = 1_000_000_000
    clock = VirtualClock()
    pages, residency = memory(PAGE, clock=clock)  # 1 s a page
    residency.maps[Space.ARENA][:6] = [1, 1, 2, 1, 1, 1]
    wanted = addresses([(Space.ARENA, page) for page in range(6)])

    def boundary(duration_ns: int) -> bool:
        assert duration_ns == 5 * second_ns
        clock.sleep(second_ns * 3 // 2)
        return True

    clock.sleep(second_ns)
    found = pages.move_pages(wanted, 1, boundary)
    assert found.error == errno.EINTR
    assert found.status.tolist() == [1, 1, 1, 0, 0, 0]
    found = pages.move_pages(wanted, 1)
    assert (found.error, set(found.status.tolist())) == (0, {1})
    assert clock.now_ns() == (1 + 5) * second_ns


def test_an_interrupted_promotion_reports_the_pages_that_moved() -> None:
    clock = VirtualClock()
    pages, residency = memory(PAGE, clock=clock)
    residency.maps[Space.ARENA][:4] = 2

    def boundary(duration_ns: int) -> bool:
        clock.sleep(duration_ns // 2)
        return True

    clock.sleep(1_000_000_000)
    found = pages.move_pages(addresses([(Space.ARENA, page) for page in range(4)]), 0, boundary)
    assert found.status.tolist() == [0, 0, 1, 1]
    assert residency.changes == [2]
    assert residency.in_flight == [0, 4, 0]


def test_moves_of_several_processes_take_turns() -> None:
    """A call waits while another process's pages move, and then moves only one small batch."""
    second_ns = 1_000_000_000
    clock, bucket = VirtualClock(), TokenBucket(PAGE)  # 1 s a page
    residency = residency_of()
    pages = EmulatedMemory(residency, SPACES, TIERS, bucket, clock)
    pages.shared_batch_pages = 2
    residency.maps[Space.ARENA][:6] = 1
    wanted = addresses([(Space.ARENA, page) for page in range(6)])
    clock.sleep(second_ns)
    bucket.take(3 * PAGE, clock.now_ns())  # the other process moves 3 pages
    found = pages.move_pages(wanted, 1, lambda _: True)  # a boundary interrupts the wait
    assert (found.error, found.status.tolist()) == (errno.EINTR, [0] * 6)
    found = pages.move_pages(wanted, 1)
    assert (found.error, found.status.tolist()) == (errno.EINTR, [1, 1, 0, 0, 0, 0])
    assert clock.now_ns() == (1 + 3 + 2) * second_ns
    found = pages.move_pages(wanted, 1)
    assert (found.error, set(found.status.tolist())) == (0, {1})
    assert clock.now_ns() == (1 + 3 + 2 + 4) * second_ns


def test_a_move_of_too_many_runs_leaves_the_last_ones_for_the_next_move() -> None:
    runs = FLIGHT_RANGES + 1
    tiers = Tiers((Tier((0,), 2 * runs * PAGE), Tier((1,), 2 * runs * PAGE)), 1e9, "emulated:test")
    start = STARTS[Space.ARENA]
    residency = residency_of(2 * runs)
    residency.maps[Space.ARENA][:] = 1
    spaces = {Space.ARENA: (start, 2 * runs * PAGE)}
    pages = EmulatedMemory(residency, spaces, tiers, TokenBucket(1e15))
    wanted = start + 2 * PAGE * np.arange(runs, dtype=np.uint64)  # every second page
    found = pages.move_pages(wanted, 1)
    assert (found.error, found.status.tolist()) == (errno.EINTR, [1] * FLIGHT_RANGES + [0])
    found = pages.move_pages(wanted, 1)
    assert (found.error, set(found.status.tolist())) == (0, {1})


def test_pages_outside_the_map_are_absent() -> None:
    pages, _ = memory()
    outside = np.array([0, STARTS[Space.ARENA] - PAGE, STARTS[Space.HEAP] + PAGES * PAGE])
    assert set(pages.query_pages(outside.astype(np.uint64)).tolist()) == {-errno.ENOENT}
    assert len(pages.move_pages(np.zeros(0, np.uint64), 1).status) == 0


@pytest.mark.parametrize("space", STARTS)
def test_pages_before_and_after_a_space_are_absent(space: Space) -> None:
    pages, residency = memory()
    residency.maps[space][:] = 2
    wanted = np.arange(
        STARTS[space] - 3 * PAGE, STARTS[space] + (PAGES + 2) * PAGE, PAGE, np.uint64
    )
    absent = -errno.ENOENT
    expected = [absent] * 3 + [1] * PAGES + [absent] * 2
    assert pages.query_pages(wanted).tolist() == expected
    expected = [absent] * 3 + [0] * PAGES + [absent] * 2
    assert pages.move_pages(wanted, 0).status.tolist() == expected
    assert residency.maps[space].tolist() == [1] * PAGES


def test_only_moved_pages_take_time_and_at_least_their_bandwidth() -> None:
    pages, residency = memory(bytes_per_s=PAGE * 200)  # 5 ms a page
    residency.maps[Space.ARENA][:] = 1
    residency.maps[Space.ARENA][:8] = 2
    everywhere = addresses([(Space.ARENA, page) for page in range(PAGES)])
    begin_ns = time.monotonic_ns()
    assert set(pages.move_pages(everywhere, 1).status.tolist()) == {1}
    # Only the 4 pages that were on node 0 move. A sleep never ends early.
    assert time.monotonic_ns() - begin_ns >= 4 * 5_000_000
    assert pages.best_node(0) == (0, 7 * PAGE)
    assert pages.best_node(1) == (1, 9 * PAGE)
