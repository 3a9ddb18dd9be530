# SPDX-License-Identifier: Apache-2.0
"""The batch of pages in flight on emulated tiers: they arrive in the residency map one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.clock import Clock
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.protocol import FLIGHT_RANGES
from tests.unit.plan.toys import two_tiers
from tests.unit.shim.blocks import PAGE
from tests.unit.shim.emulation import ARENA_PAGES, HEAP_PAGES, Emulation, no_accesses

PAGE_NS = 5000.0
BEGIN_NS = 1_000_000
FAST, SLOW = 1, 2


class Flying(Emulation):
    """Emulated tiers with a batch in flight."""

    def begin(
        self, ranges: list[tuple[int, int, int]], node: int, begin_ns: int = BEGIN_NS
    ) -> None:
        """Begin a batch. ranges: (first page, pages, 0 for the arena or 1 for the heap)."""
        assert self.segment.flight is not None
        self.segment.flight.begin(ranges, node, begin_ns, PAGE_NS)

    def end(self, arrived: int) -> None:
        assert self.segment.flight is not None
        self.segment.flight.end(arrived)

    def arrive(self, pages: float) -> None:
        """Mark all pages that have moved by the time BEGIN_NS + pages * PAGE_NS as arrived."""
        self.harness.flight_arrive(self.handle, BEGIN_NS + round(pages * PAGE_NS))

    def active(self) -> bool:
        return bool(self.harness.flight_active(self.handle))

    def words(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        assert self.segment.flight is not None
        return self.segment.flight.words


@pytest.fixture
def flying(harness: ctypes.CDLL) -> Iterator[Flying]:
    made = Flying(harness, no_accesses(), fast_pages=12)
    yield made
    made.close()


def test_pages_arrive_one_after_the_other(flying: Flying) -> None:
    arena, heap = flying.arena, flying.heap_map
    arena[:4] = FAST
    assert not flying.active()
    flying.begin([(0, 2, 0), (0, 3, 1), (3, 1, 0)], 1)
    assert flying.active()
    flying.arrive(-10)
    assert arena[:4].tolist() == [FAST] * 4
    flying.arrive(1.9)
    assert arena[:4].tolist() == [SLOW, FAST, FAST, FAST]
    flying.arrive(4)
    assert arena[:4].tolist() == [SLOW, SLOW, FAST, FAST]
    assert heap[:4].tolist() == [SLOW, SLOW, FAST, 0]
    flying.arrive(3)  # this caller read the clock before the previous caller did
    flying.arrive(100)
    assert arena[:4].tolist() == [SLOW, SLOW, FAST, SLOW]
    assert heap[:4].tolist() == [SLOW, SLOW, SLOW, 0]
    assert not flying.active()


def test_no_page_arrives_after_the_end_of_an_interrupted_batch(flying: Flying) -> None:
    flying.arena[:4] = FAST
    flying.begin([(0, 4, 0)], 1)
    flying.arrive(1)
    flying.end(2)
    assert flying.active()
    flying.arrive(4)
    assert flying.arena[:4].tolist() == [SLOW, SLOW, FAST, FAST]
    assert not flying.active()
    flying.begin([(1, 3, 0)], 0)
    flying.arrive(2)
    assert flying.arena[:4].tolist() == [SLOW, FAST, FAST, FAST]


def test_absent_pages_do_not_arrive(flying: Flying) -> None:
    flying.harness.emulation_slot_born(flying.handle, 1)
    assert flying.arena[16:20].tolist() == [SLOW] * 4
    flying.begin([(16, 4, 0)], 0)
    flying.arrive(1)
    flying.harness.emulation_slot_dropped(flying.handle, 1)
    flying.arrive(3)
    assert flying.arena[16:20].tolist() == [0] * 4
    # The next tensor is born on the same pages while the batch's last page (page 19) is in flight.
    flying.harness.emulation_slot_born(flying.handle, 1)
    flying.arrive(4)
    assert flying.arena[16:20].tolist() == [SLOW, SLOW, SLOW, FAST]


def test_pages_that_leave_fast_memory_make_room_at_once(flying: Flying) -> None:
    """The fast node has 12 pages, of which the heap's live block uses 3 (see Emulation)."""
    flying.harness.emulation_slot_born(flying.handle, 0)
    flying.harness.emulation_slot_born(flying.handle, 2)
    assert flying.arena[:6].tolist() == [FAST] * 6
    flying.arena[8:11] = FAST
    flying.harness.emulation_recount(flying.handle, HEAP_PAGES)  # now, 12 pages are in use
    flying.begin([(8, 3, 0)], 1)
    flying.arrive(2)
    flying.harness.emulation_slot_dropped(flying.handle, 0)
    flying.arena[4:6] = SLOW
    flying.segment.moved(-2)
    flying.harness.emulation_slot_born(flying.handle, 0)
    assert flying.arena[:4].tolist() == [FAST] * 4
    flying.harness.emulation_recount(flying.handle, HEAP_PAGES)
    assert flying.segment.fast_room() == 12 - 3 - 4 - 1


def test_pages_in_flight_to_fast_memory_have_room_until_they_arrive(flying: Flying) -> None:
    flying.arena[8:16] = SLOW
    flying.segment.flying(8)
    flying.begin([(8, 8, 0)], 0)
    for pages in (0, 5):
        flying.arrive(pages)
        flying.harness.emulation_slot_born(flying.handle, 0)
        assert flying.arena[:4].tolist() == [FAST, SLOW, SLOW, SLOW]
        flying.harness.emulation_slot_dropped(flying.handle, 0)
    flying.end(5)
    flying.segment.flying(0)
    flying.harness.emulation_slot_born(flying.handle, 0)
    assert flying.arena[:4].tolist() == [FAST] * 4


class Births(Clock):
    """A clock. At the end of each sleep, the pages that have moved by then are marked as arrived.
    Then the tensor of slot 0 is born and dropped."""

    def __init__(self, flying: Flying) -> None:
        self._flying, self._now_ns = flying, BEGIN_NS
        self.born: list[list[int]] = []

    def now_ns(self) -> int:
        return self._now_ns

    def sleep(self, duration_ns: int) -> None:
        self._now_ns += duration_ns
        harness, handle = self._flying.harness, self._flying.handle
        harness.flight_arrive(handle, self._now_ns)
        harness.emulation_slot_born(handle, 0)
        self.born.append(self._flying.arena[:4].tolist())
        harness.emulation_slot_dropped(handle, 0)


def test_pages_of_a_batch_that_has_not_begun_have_room(flying: Flying) -> None:
    """Between the two batches, another process uses the bandwidth for the moves of 8 pages. So the
    second batch has to wait before it begins."""
    segment, clock = flying.segment, Births(flying)
    bucket = TokenBucket(PAGE / PAGE_NS * 1e9, slack_ns=0)
    arena, heap = (1 << 30, ARENA_PAGES * PAGE), (1 << 31, HEAP_PAGES * PAGE)
    spaces = {Space.ARENA: arena, Space.HEAP: heap}
    memory = EmulatedMemory(segment, spaces, two_tiers(), bucket, clock)
    flying.arena[8:20] = SLOW
    addresses = np.arange(arena[0] + 8 * PAGE, arena[0] + 20 * PAGE, PAGE, np.uint64)
    memory.move_pages(addresses[:6], 0)
    bucket.take(8 * PAGE, clock.now_ns())
    memory.move_pages(addresses[6:], 0)
    # The fast node has 12 pages: the heap's live block uses 3 (see Emulation), the first batch gets
    # 6, and the second batch gets the remaining 3.
    assert clock.born == [[FAST, FAST, FAST, SLOW], [SLOW] * 4, [SLOW] * 4]


def test_arrived_pages_of_a_former_batch_make_no_room(flying: Flying) -> None:
    flying.arena[8:20] = SLOW
    flying.segment.flying(4)
    flying.begin([(8, 4, 0)], 0)
    flying.arrive(4)
    # The daemon publishes the next batch after the process has looked for arrived pages, and before
    # the process computes the room for a birth.
    flying.begin([], 0)
    flying.segment.flying(8)
    flying.harness.emulation_slot_born(flying.handle, 0)
    assert flying.arena[:4].tolist() == [SLOW] * 4


RANGE = st.tuples(
    st.one_of(st.integers(0, ARENA_PAGES + 2), st.just((1 << 64) - 1)),
    st.one_of(st.integers(0, 9), st.just((1 << 32) - 1)),
    st.integers(0, 3),
)


@given(
    st.lists(RANGE, max_size=12),
    st.sampled_from([0, 1, 254, 255, (1 << 32) - 1]),
    st.lists(st.integers(0, 60), max_size=5).map(sorted),
    st.integers(0, 60),
)
def test_any_words_of_the_daemon_are_safe(
    harness: ctypes.CDLL,
    ranges: list[tuple[int, int, int]],
    node: int,
    times: list[int],
    limit: int,
) -> None:
    """Ranges outside the maps take time, but change nothing."""
    flying = Flying(harness, no_accesses())
    maps = {0: [FAST, 0] * (ARENA_PAGES // 2), 1: [SLOW, FAST] * (HEAP_PAGES // 2)}
    flying.arena[:], flying.heap_map[:] = maps[0], maps[1]
    flying.begin(ranges, node)
    flying.end(limit)
    for pages in times:
        flying.arrive(pages)
    left = min(times[-1], limit) if times and node <= 254 else 0
    for page, pages, space in ranges:
        entries = maps[min(space, 1)]
        if page + pages <= len(entries):
            for at in range(page, page + min(pages, left)):
                entries[at] = node + 1 if entries[at] else 0
        left = max(left - pages, 0)
    assert flying.arena.tolist() == maps[0]
    assert flying.heap_map.tolist() == maps[1]
    flying.close()


@pytest.mark.parametrize(
    "words",
    [
        {"count": FLIGHT_RANGES + 1},
        {"begin_ns": (1 << 64) - 1},
        {"sequence": 7},
    ],
)
def test_invalid_or_changing_words_move_no_page(flying: Flying, words: dict[str, int]) -> None:
    flying.arena[:4] = FAST
    flying.begin([(0, 4, 0)], 1)
    for name, value in words.items():
        flying.words()[name] = value
    flying.arrive(10)
    assert flying.arena[:4].tolist() == [FAST] * 4


@pytest.mark.parametrize("words", [{"page_ps": 0}, {"begin_ns": 0, "page_ps": 1}])
def test_the_fastest_batch_arrives_at_once(flying: Flying, words: dict[str, int]) -> None:
    flying.arena[:4] = FAST
    flying.begin([(0, 4, 0)], 1)
    for name, value in words.items():
        flying.words()[name] = value
    flying.harness.flight_arrive(flying.handle, (1 << 64) - 1)
    assert flying.arena[:4].tolist() == [SLOW] * 4
