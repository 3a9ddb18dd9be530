# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: births and drops in the residency map, and the delay that a stretch owes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.protocol import ACCESS_DTYPE, AccessFlag
from sentineld.plan.layout_wire import pack_layout
from tests.unit.plan.toys import two_tiers
from tests.unit.shim.blocks import PAGE
from tests.unit.shim.emulation import (
    ARENA_PAGES,
    HEAP_PAGES,
    LAYOUT,
    SLOTS,
    STRETCHES,
    Emulation,
    no_accesses,
)


@pytest.fixture
def emulation(harness: ctypes.CDLL) -> Iterator[Emulation]:
    made = Emulation(harness, no_accesses())
    yield made
    made.close()


def test_births_follow_the_regions_and_drops_clear_the_map(emulation: Emulation) -> None:
    harness, handle, arena = emulation.harness, emulation.handle, emulation.arena
    for slot in (0, 1, 2):
        harness.emulation_slot_born(handle, slot)
    assert arena[:6].tolist() == [1] * 6
    assert arena[16:20].tolist() == [2] * 4
    arena[3:5] = 2  # as after a move to the slow node
    harness.emulation_slot_dropped(handle, 0)
    assert arena[:6].tolist() == [0, 0, 0, 0, 2, 1]
    harness.emulation_slot_dropped(handle, 2)  # without SlotFlag.DROP: pages stay resident
    assert arena[4:6].tolist() == [2, 1]
    harness.emulation_slot_born(handle, 2)  # resident pages keep their tier
    assert arena[:6].tolist() == [0, 0, 1, 1, 2, 1]


def test_live_heap_blocks_are_fast_and_new_ones_go_to_the_heaps_tier(emulation: Emulation) -> None:
    heap = emulation.heap_map
    assert heap[:4].tolist() == [1, 1, 1, 0]
    emulation.harness.emulation_heap_born(emulation.handle, 2, 4)
    assert heap[:7].tolist() == [1, 1, 1, 2, 2, 2, 0]
    emulation.harness.emulation_heap_dropped(emulation.handle, 1, 3)
    assert heap[:7].tolist() == [1, 0, 0, 0, 2, 2, 0]


def test_the_next_layout_copies_the_live_blocks_residency(harness: ctypes.CDLL) -> None:
    row = np.zeros(1, ACCESS_DTYPE)
    row["slow_ps"], row["pages"], row["flags"], row["node"] = 1_000_000, 3, AccessFlag.AT_BIRTH, 1
    first = Emulation(harness, row)
    first.heap_map[:6] = [1, 2, 2, 2, 2, 2]  # only the first 3 pages are live
    assert first.charge(0) == (0, 0, 3000)
    second = Emulation(harness, no_accesses(), first)
    assert second.heap_map[:6].tolist() == [1, 2, 2, 0, 0, 0]
    assert second.segment.owed_ns == 3000
    harness.test_emulation_delete(first.handle)
    assert harness.emulation_due(second.handle, True) == 3000
    second.close()


def test_births_are_slow_once_the_fast_node_is_full(harness: ctypes.CDLL) -> None:
    emulation = Emulation(harness, no_accesses(), fast_pages=6)  # 3 of them hold the heap's block
    handle, arena = emulation.handle, emulation.arena
    assert emulation.heap_map[:4].tolist() == [1, 1, 1, 0]
    harness.emulation_slot_born(handle, 0)
    assert arena[:4].tolist() == [1, 1, 1, 2]
    harness.emulation_slot_dropped(handle, 0)  # frees 3 fast pages
    harness.emulation_slot_born(handle, 2)
    assert arena[2:6].tolist() == [1, 1, 1, 2]
    harness.emulation_heap_dropped(handle, 0, 2)
    harness.emulation_slot_born(handle, 0)  # resident pages keep their tier
    assert arena[:6].tolist() == [1, 1, 1, 1, 1, 2]
    harness.emulation_slot_born(handle, 1)  # slow births need no fast page
    assert arena[16:20].tolist() == [2] * 4
    emulation.close()


def test_the_daemons_moves_change_the_fast_room(harness: ctypes.CDLL) -> None:
    emulation = Emulation(harness, no_accesses(), fast_pages=6)
    handle, arena = emulation.handle, emulation.arena
    harness.emulation_slot_born(handle, 1)
    arena[16:18] = 1
    emulation.segment.moved(2)
    harness.emulation_slot_born(handle, 0)
    assert arena[:4].tolist() == [1, 2, 2, 2]
    harness.emulation_slot_dropped(handle, 0)
    emulation.heap_map[:2] = 2
    emulation.segment.moved(-2)
    harness.emulation_slot_born(handle, 0)
    assert arena[:4].tolist() == [1, 1, 1, 2]
    # The recount at the beginning of a step corrects the count of fast pages.
    arena[:4], arena[16:18] = 0, 0
    harness.emulation_recount(handle, HEAP_PAGES)
    harness.emulation_slot_born(handle, 0)
    assert arena[:4].tolist() == [1] * 4
    emulation.segment.moved(1 << 62)  # an implausible count only makes births slow
    harness.emulation_slot_dropped(handle, 0)
    harness.emulation_slot_born(handle, 0)
    assert arena[:4].tolist() == [2] * 4
    emulation.close()


def test_heap_pages_beyond_a_smaller_fast_node_are_slow(harness: ctypes.CDLL) -> None:
    first = Emulation(harness, no_accesses())
    second = Emulation(harness, no_accesses(), first, fast_pages=2)
    assert second.heap_map[:4].tolist() == [1, 1, 2, 0]
    harness.test_emulation_delete(first.handle)
    # Blocks that were born in the step that has just ended get no fast page. The next step
    # allocates such tensors again, in the arena, where they need the fast pages.
    third = Emulation(harness, no_accesses(), second, fast_pages=5, step=0)
    assert third.heap_map[:4].tolist() == [2, 2, 2, 0]
    harness.test_emulation_delete(second.handle)
    harness.emulation_slot_born(third.handle, 0)
    harness.emulation_slot_born(third.handle, 2)
    assert third.arena[:6].tolist() == [1, 1, 1, 1, 1, 2]
    third.close()


ACCESS = st.tuples(
    st.integers(0, STRETCHES - 1),
    st.booleans(),  # whether the pages are in the heap
    st.booleans(),  # whether the access is at a birth
    st.integers(0, HEAP_PAGES + 2),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 10_000_000),
    st.integers(0, 1),
    st.integers(0, len(SLOTS)),  # 1 + slot, or 0 for no slot
    st.booleans(),  # whether the access is counted after the stretch
)


def own_pages(page: int, pages: int, slot: int, sizes: list[int]) -> int:
    """Number of an access's pages that lie in its slot's tensor; all of its pages if it has no
    slot."""
    if not slot:
        return pages
    before = page - int(SLOTS["offset"][slot - 1]) // PAGE
    return max(min(pages, -(-sizes[slot - 1] // PAGE) - before), 0) if before >= 0 else 0


@given(
    st.lists(ACCESS, max_size=20),
    st.tuples(*(st.integers(1, int(size)) for size in SLOTS["bytes"])).map(list),
    st.lists(st.integers(0, 2), min_size=ARENA_PAGES, max_size=ARENA_PAGES),
    st.lists(st.integers(0, 2), min_size=HEAP_PAGES, max_size=HEAP_PAGES),
    st.lists(st.integers(0, 50_000_000), min_size=STRETCHES, max_size=STRETCHES),
)
def test_a_stretch_is_charged_for_its_slow_pages(
    harness: ctypes.CDLL,
    listed: list[tuple[int, bool, bool, int, int, int, int, int, int, bool]],
    sizes: list[int],
    arena: list[int],
    heap: list[int],
    hidden: list[int],
) -> None:
    """hidden: the delay that the computation of each stretch hides, in ps; 0: the table has no row
    with the flag HIDES for this stretch."""
    rows = np.zeros(len(listed), ACCESS_DTYPE)
    expected = [[0, 0] for _ in range(STRETCHES + 1)]
    own_ps, after_ps = [0] * STRETCHES, [0] * (STRETCHES + 1)
    for at, access in enumerate(sorted(listed, key=lambda one: one[0])):
        stretch, in_heap, at_birth, page, whole, touched, slow_ps, node, slot, after = access
        flags = AccessFlag.HEAP * in_heap | AccessFlag.AT_BIRTH * at_birth
        flags |= AccessFlag.AFTER * after
        rows[at] = (page * PAGE, slow_ps, whole, touched, stretch, flags, node, slot, 0)
        pages = own_pages(page, whole, slot, sizes)
        stretch += after
        places = heap if in_heap else arena
        if at_birth:
            slow = pages * node
        elif page + pages <= len(places):
            slow = sum(here - 1 if here else node for here in places[page : page + pages])
        else:
            slow = 0  # outside the map
        expected[stretch][0] += touched * pages // whole if whole else touched
        expected[stretch][1] += (pages - slow) * touched // whole if whole else 0
        (after_ps if after else own_ps)[stretch] += slow * slow_ps
    hides = np.zeros(np.count_nonzero(hidden), ACCESS_DTYPE)
    hides["stretch"], hides["flags"] = np.flatnonzero(hidden), AccessFlag.HIDES
    hides["slow_ps"] = [ps for ps in hidden if ps]
    rows = np.concatenate([hides, rows])
    emulation = Emulation(harness, rows[np.argsort(rows["stretch"], kind="stable")])
    emulation.arena[:] = arena
    emulation.heap_map[:] = heap
    for slot, size in enumerate(sizes):
        harness.emulation_slot_sized(emulation.handle, slot, size)
    total_ps = left_ps = 0
    # The last stretch's accesses with the flag AFTER are counted when the first stretch begins
    # again.
    expected[-1] = [sum(both) for both in zip(expected[0], expected[-1], strict=True)]
    for stretch, (accesses, fast) in enumerate(expected):
        # Accesses with the flag AFTER are counted when the next stretch begins. But only the
        # computation of the stretch in which they happen can hide their delay.
        total_ps += max(after_ps[stretch] - left_ps, 0)
        own = stretch % STRETCHES
        total_ps += max(own_ps[own] - hidden[own], 0)
        left_ps = max(hidden[own] - own_ps[own], 0)
        assert emulation.charge(stretch % STRETCHES)[:2] == (accesses, fast)
        assert emulation.segment.owed_ns == total_ps // 1000
    assert emulation.charge(STRETCHES) == (0, 0, 0)  # no such stretch
    emulation.close()


def test_small_debts_are_carried_over_and_paid_in_full(harness: ctypes.CDLL) -> None:
    row = np.zeros(2, ACCESS_DTYPE)
    row["pages"], row["flags"], row["node"] = 1, AccessFlag.AT_BIRTH, 1
    row["slow_ps"] = [60_000_000, 3_000_000_000]  # 60 us, 3 ms
    row["stretch"] = [0, 1]
    emulation = Emulation(harness, row)
    emulation.charge(0)
    assert harness.emulation_due(emulation.handle, False) == 0
    assert harness.emulation_due(emulation.handle, True) == 60_000
    emulation.charge(1)
    assert harness.emulation_due(emulation.handle, False) == 3_060_000
    spent_ns = harness.delay_spend(3_060_000)
    # delay_spend() returns at least the debt, and up to 200 us (CREDIT_NS_MAX) more if the wait
    # ends late.
    assert 3_060_000 <= spent_ns <= 3_260_000
    harness.emulation_paid(emulation.handle, spent_ns)
    assert emulation.segment.paid_ns == spent_ns
    assert harness.emulation_due(emulation.handle, True) == 0
    emulation.close()


def test_invalid_accesses_are_refused(harness: ctypes.CDLL) -> None:
    good = np.zeros(2, ACCESS_DTYPE)
    good["stretch"] = [0, 2]
    heap = harness.test_heap_new(HEAP_PAGES * PAGE)
    for field, value in (
        ("stretch", [1, 0]),
        ("stretch", [0, STRETCHES]),
        ("offset", [1, 0]),
        ("offset", [1 << 50, 0]),
        ("slow_ps", [1 << 60, 0]),
        ("node", [-1, 0]),
        ("node", [0, 2000]),
    ):
        bad = good.copy()
        bad[field] = value
        fd = os.memfd_create("layout")
        os.write(fd, pack_layout(replace(LAYOUT), 5, two_tiers(), STRETCHES, bad))
        problem = ctypes.c_char_p()
        assert not harness.test_emulation_new(fd, heap, None, 1, ctypes.byref(problem))
        assert b"access" in (problem.value or b"")
        os.close(fd)
    fd = os.memfd_create("layout")
    os.write(fd, pack_layout(LAYOUT, 5, two_tiers(), STRETCHES, good, 1 << 40))
    assert not harness.test_emulation_new(fd, heap, None, 1, ctypes.byref(problem))
    assert b"fast node" in (problem.value or b"")
    os.close(fd)
    harness.test_heap_delete(heap)
