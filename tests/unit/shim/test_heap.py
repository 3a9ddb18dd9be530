# SPDX-License-Identifier: Apache-2.0
"""The page heap under random sequences of births and deaths."""

from __future__ import annotations

import ctypes

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.shim.blocks import PAGE, pages, stamp, stamped

HEAP_PAGES = 600

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 130 * PAGE)),
        st.tuples(st.just("give"), st.integers(0, 1000)),
        st.tuples(st.just("drop"), st.just(0)),
    ),
    max_size=120,
)


@given(ACTIONS)
def test_live_blocks_neither_overlap_nor_lose_data(
    harness: ctypes.CDLL, actions: list[tuple[str, int]]
) -> None:
    heap = harness.test_heap_new(HEAP_PAGES * PAGE)
    live: list[tuple[int, int, int]] = []
    try:
        for mark, (action, value) in enumerate(actions, start=1):
            if action == "take":
                size = max(value, 16)
                address = harness.test_heap_take(heap, size)
                used = sum(pages(s) for _, s, _ in live)
                if address is None:
                    # The largest gap has at least (free pages / number of gaps) pages.
                    assert pages(size) > (HEAP_PAGES - used) // (len(live) + 1)
                    continue
                assert address % PAGE == 0
                end = address + pages(size) * PAGE
                assert all(end <= a or address >= a + pages(s) * PAGE for a, s, _ in live)
                stamp(address, size, mark)
                live.append((address, size, mark))
            elif action == "give" and live:
                address, _, _ = live.pop(value % len(live))
                assert harness.test_heap_give(heap, address)
                assert not harness.test_heap_give(heap, address)
            elif action == "drop":
                harness.heap_drop_free(heap)
            assert all(stamped(*block) for block in live)
            assert harness.test_heap_live_pages(heap) == sum(pages(s) for _, s, _ in live)
            assert harness.test_heap_blocks(heap) >= len(live)
            assert harness.test_heap_blocks(heap) > 0
        for address, _, _ in live:
            assert harness.test_heap_give(heap, address)
        assert harness.test_heap_blocks(heap) == 1
    finally:
        harness.test_heap_delete(heap)


def test_best_fit_reuses_holes_before_new_memory(harness: ctypes.CDLL) -> None:
    heap = harness.test_heap_new(HEAP_PAGES * PAGE)
    blocks = [harness.test_heap_take(heap, size * PAGE) for size in (8, 1, 5, 1, 6, 1)]
    for index in (0, 2, 4):
        harness.test_heap_give(heap, blocks[index])
    assert harness.test_heap_take(heap, 5 * PAGE) == blocks[2]
    assert harness.test_heap_take(heap, 6 * PAGE - 100) == blocks[4]
    assert harness.test_heap_take(heap, 7 * PAGE) == blocks[0]
    harness.test_heap_delete(heap)


def test_dropped_free_pages_read_as_zero(harness: ctypes.CDLL) -> None:
    heap = harness.test_heap_new(HEAP_PAGES * PAGE)
    address = harness.test_heap_take(heap, 4 * PAGE)
    keep = harness.test_heap_take(heap, PAGE)
    stamp(address, 4 * PAGE, 7)
    stamp(keep, PAGE, 9)
    harness.test_heap_give(heap, address)
    harness.heap_drop_free(heap)
    assert ctypes.string_at(address, 8) == b"\0" * 8
    assert stamped(keep, PAGE, 9)
    harness.test_heap_delete(heap)
