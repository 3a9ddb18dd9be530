# SPDX-License-Identifier: Apache-2.0
"""Ranges that may be huge pages, compared with a model that tracks every page."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import (
    MOVE_DTYPE,
    PART_DTYPE,
    SLOT_DROP,
    SLOT_DROP_PARTS,
    SLOT_DTYPE,
    SLOT_PLANNED,
    Layout,
    Plan,
    Region,
    Space,
)
from sentineld.model.protocol import HUGE_BYTES
from sentineld.plan import huge
from sentineld.plan.huge import with_huge_pages
from sentineld.plan.packing import alive_together
from sentineld.plan.predict import unpredicted

BLOCK = 4
"""Small pages per huge page in these tests."""
PAGE = HUGE_BYTES // BLOCK
BLOCKS = 4
EVENTS = 8
KEPT, DROPPED, PARTLY = 0, SLOT_DROP, SLOT_DROP_PARTS

Life = tuple[int, int, int, int, int]
"""First page, number of pages, birth, death, and KEPT, DROPPED or PARTLY."""


def part_of(first: int, count: int) -> tuple[int, int]:
    """(first page, pages) that a PARTLY dropped tensor drops: all but its first BLOCK pages.

    A tensor of at most BLOCK pages drops its first page, unless it has no other page.
    """
    return (first + BLOCK, count - BLOCK) if count > BLOCK else (first, 0 if count == 1 else 1)


def plan_of(
    lives: list[Life],
    moves: list[tuple[int, int, Space]] | None = None,
    borders: tuple[int, ...] = (),
    pages: int = BLOCK * BLOCKS,
) -> Plan:
    """A plan for tensors with these lives.

    moves: (first page, pages, space). borders: pages at which a new region begins.
    """
    slots = np.zeros(len(lives), SLOT_DTYPE)
    parts = np.zeros(0, PART_DTYPE)
    for at, (first, count, _, _, flags) in enumerate(lives):
        # The last page of each slot is only partly used.
        slots[at] = (count * PAGE - 1, first * PAGE, SLOT_PLANNED | flags, 0)
        if flags == PARTLY:
            low, pages_ = part_of(first, count)
            part = np.array([(low * PAGE, pages_ * PAGE, at, 0)], PART_DTYPE)
            parts = np.concatenate([parts, part])
    table = np.zeros(len(moves or ()), MOVE_DTYPE)
    for at, (first, count, space) in enumerate(moves or ()):
        table[at]["offset"], table[at]["bytes"] = first * PAGE, count * PAGE
        table[at]["space"] = space
    edges = [0, *borders, pages]
    layout = Layout(
        slots=slots,
        cuts=np.zeros(0, np.uint32),
        regions=tuple(
            Region(low * PAGE, (high - low) * PAGE, 0, "") for low, high in pairwise(edges)
        ),
        waits=np.full(1, -1, np.int32),
        arena_bytes=pages * PAGE,
        parts=parts,
    )
    return Plan("", 0, layout, table, np.zeros(0, np.uint8), (), unpredicted())


def found(plan: Plan, whole_moves: bool = False) -> list[int]:
    """The indices of blocks that may be huge pages."""
    ranges = with_huge_pages(plan, PAGE, whole_moves=whole_moves).huge
    assert all(one.offset % HUGE_BYTES == one.bytes % HUGE_BYTES == 0 for one in ranges)
    return [
        block
        for one in ranges
        for block in range(one.offset // HUGE_BYTES, (one.offset + one.bytes) // HUGE_BYTES)
    ]


def test_a_dropping_tensor_must_cover_whole_blocks() -> None:
    # block     0    1    2    3      (of four pages; one letter is one page)
    # A (drops) AAAA AAAA AA..
    # B (drops) .... BBBB ....        lives after A
    # D (drops) .... .... .... DDDD
    # C         .... .... .... C...   lives after D
    a, b = (0, 10, 0, 2, DROPPED), (4, 4, 2, 4, DROPPED)
    d, c = (12, 4, 0, 2, DROPPED), (12, 1, 4, 6, KEPT)
    assert found(plan_of([a, b, d])) == [0, 1, 3]
    assert found(plan_of([a, b, d, c])) == [0, 1]
    assert found(plan_of([])) == []


def test_a_tensor_that_drops_parts_must_drop_whole_blocks() -> None:
    # block     0    1    2    3      (of four pages; one letter is one page)
    # A         AAAA AAAA AA..        8 or 10 pages; all but the first 4 are dropped
    assert found(plan_of([(0, 8, 0, 2, PARTLY)])) == [0, 1]
    assert found(plan_of([(0, 10, 0, 2, PARTLY)])) == [0, 1]
    # B         ..BB BBBB BBBB        10 pages; all but the first 4 are dropped
    # C         CC..                  never dropped; B and C together fill block 0
    assert found(plan_of([(2, 10, 0, 2, PARTLY), (0, 2, 0, 2, KEPT)])) == [0, 2]


def test_a_block_that_is_never_dropped_must_be_full() -> None:
    # block     0    1    2    3      (of four pages; one letter is one page)
    # A         AAAA AA..
    # B         .... ..BB B...        block 2 is never full
    # C                        CCC.
    # D                        .DDD   lives after C; C and D together cover block 3
    a, b = (0, 6, 0, 2, KEPT), (6, 3, 0, 2, KEPT)
    c, d = (12, 3, 0, 2, KEPT), (13, 3, 2, 4, KEPT)
    assert found(plan_of([a, b, c, d])) == [0, 1, 3]
    assert found(plan_of([a, (6, 3, 0, 2, DROPPED), c, d])) == [0, 3]


def test_moved_blocks_and_blocks_across_regions_stay_small() -> None:
    whole = [(0, 16, 0, 4, KEPT)]
    assert found(plan_of(whole)) == [0, 1, 2, 3]
    assert found(plan_of(whole, [(5, 1, Space.ARENA), (0, 16, Space.HEAP)])) == [0, 2, 3]
    # Blocks 0 and 1 are moved completely, block 2 only partly.
    moved = plan_of(whole, [(0, 8, Space.ARENA), (8, 2, Space.ARENA), (4, 4, Space.ARENA)])
    assert found(moved) == [3]
    assert found(moved, whole_moves=True) == [0, 1, 3]
    assert found(plan_of(whole, borders=(8,))) == [0, 1, 2, 3]
    assert found(plan_of(whole, borders=(9,))) == [0, 1, 3]
    # The last pages of the arena stay small if they do not fill a huge page.
    assert found(plan_of([(0, 15, 0, 4, KEPT)], pages=15)) == [0, 1, 2]


def test_the_largest_ranges_are_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    lives = [(0, 4, 0, 4, KEPT), (8, 8, 0, 4, KEPT)]
    assert found(plan_of(lives)) == [0, 2, 3]
    monkeypatch.setattr(huge, "RANGES_MAX", 1)
    assert found(plan_of(lives)) == [2, 3]


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, list[Life]]:
    """A plan, and the lives of its tensors. Tensors that are alive at the same time share no
    page."""
    lives: list[Life] = []
    for _ in range(draw(st.integers(0, 12))):
        # Draw block borders more often than uniform sampling would.
        first = draw(st.integers(0, BLOCK * BLOCKS - 1) | st.sampled_from(range(0, 16, BLOCK)))
        count = draw(st.integers(1, 16) | st.sampled_from((4, 8)))
        count = min(count, BLOCK * BLOCKS - first)
        birth, death = draw(st.permutations(range(EVENTS)))[:2]
        others = np.array(
            [life[2:4] for life in lives if life[0] < first + count and first < life[0] + life[1]],
            np.int64,
        ).reshape(-1, 2)
        if not alive_together(others[:, 0], others[:, 1], birth, death).any():
            lives.append(
                (first, count, birth, death, draw(st.sampled_from((KEPT, DROPPED, PARTLY))))
            )
    moved = draw(
        st.lists(st.tuples(st.integers(0, 15), st.just(1), st.just(Space.ARENA)), max_size=1)
    )
    borders = draw(st.sets(st.integers(1, 15), max_size=1))
    return plan_of(lives, moved, tuple(borders)), lives


@given(plans())
def test_huge_pages_make_no_further_pages_resident(case: tuple[Plan, list[Life]]) -> None:
    plan, lives = case
    chosen = found(plan)
    small, large = (np.zeros(BLOCK * BLOCKS, np.bool_) for _ in range(2))
    by_block = large.reshape(BLOCKS, BLOCK)  # a view of `large`: one row per block
    seen_small, seen_large = [], []
    for _ in range(3):
        for event in range(EVENTS):
            for first, count, _, death, flags in lives:
                low, gone = (first, count) if flags == DROPPED else part_of(first, count)
                if death == event and flags != KEPT:
                    small[low : low + gone] = large[low : low + gone] = False
            # A huge page is never dropped in part.
            assert all(by_block[block].all() == by_block[block].any() for block in chosen)
            for first, count, birth, _, _ in lives:
                if birth == event:
                    small[first : first + count] = large[first : first + count] = True
                    for block in chosen:
                        by_block[block] = by_block[block].any()
            seen_small.append(small.copy())
            seen_large.append(large.copy())
    for event in range(EVENTS):
        steady = seen_small[event + 2 * EVENTS]
        assert (seen_large[event + 2 * EVENTS] == steady).all()
        # In the first step, huge pages may make a page resident before its tensor is born. But then
        # the page must also be resident at the same event of a steady step.
        assert (seen_small[event] <= seen_large[event]).all()
        assert (seen_large[event] <= steady).all()


@given(plans())
def test_two_sizes_allow_only_blocks_that_one_size_allows(case: tuple[Plan, list[Life]]) -> None:
    plan, _ = case
    unit = HUGE_BYTES // 2

    def blocks(*sizes: int) -> set[int]:
        """The indices of the chosen blocks, counted in blocks of the smaller size."""
        ranges = with_huge_pages(plan, PAGE, sizes).huge
        assert all(one.offset % unit == one.bytes % unit == 0 for one in ranges)
        return {
            at
            for one in ranges
            for at in range(one.offset // unit, (one.offset + one.bytes) // unit)
        }

    small, large, both = blocks(unit), blocks(HUGE_BYTES), blocks(unit, HUGE_BYTES)
    assert large <= both <= small | large
    for block in range(BLOCKS):
        halves = {2 * block, 2 * block + 1}
        # If both halves of a block are allowed, the kernel uses one large page for the block, so
        # the large page must be allowed, too.
        assert (halves <= both) == (halves <= large)
        assert both & halves == small & halves or halves <= small | large


@given(plans())
def test_slots_outside_the_plan_do_not_count(case: tuple[Plan, list[Life]]) -> None:
    plan, _ = case
    slots = plan.layout.slots.copy()
    slots["flags"] &= ~np.uint32(SLOT_PLANNED)
    assert found(replace(plan, layout=replace(plan.layout, slots=slots))) == []
