# SPDX-License-Identifier: Apache-2.0
"""Drops of slots, compared with sets of pages."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import (
    SLOT_DROP,
    SLOT_DROP_PARTS,
    SLOT_DTYPE,
    SLOT_PLANNED,
    Layout,
)
from sentineld.plan.drops import covered, drops, with_drops

PAGE = 4096


def layout(sizes: list[int]) -> Layout:
    """Adjacent slots; the last page of each is only partly used."""
    slots = np.zeros(len(sizes), SLOT_DTYPE)
    slots["bytes"] = np.array(sizes) * PAGE - 1
    slots["offset"] = (np.cumsum(sizes) - sizes) * PAGE
    slots["flags"] = SLOT_PLANNED | SLOT_DROP
    return Layout(
        slots=slots,
        cuts=np.zeros(0, np.uint32),
        regions=(),
        waits=np.full(1, -1, np.int32),
        arena_bytes=sum(sizes) * PAGE,
    )


def pages_of(one: Layout) -> list[set[int]]:
    """The arena pages that each slot drops."""
    found: list[set[int]] = [set() for _ in one.slots]
    for row in drops(one, PAGE):
        first = int(row["offset"]) // PAGE
        found[int(row["slot"])] |= set(range(first, first + int(row["bytes"]) // PAGE))
    return found


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=6))
def test_slots_drop_the_given_ranges(wanted: list[list[bool]]) -> None:
    before = layout([len(pages) for pages in wanted])
    start = (before.slots["offset"] // PAGE).astype(np.int64)
    dropped = [
        {int(start[slot]) + at for at, page in enumerate(pages) if page}
        for slot, pages in enumerate(wanted)
    ]
    rows = [(slot, page) for slot, pages in enumerate(dropped) for page in pages][::-1]
    slot, first = np.array(rows, np.int64).reshape(-1, 2).T
    after = with_drops(before, slot, first, np.ones(len(rows), np.int64), PAGE)
    assert pages_of(after) == dropped
    for at, pages in enumerate(wanted):
        flags = int(after.slots["flags"][at])
        assert bool(flags & SLOT_DROP) == all(pages)
        assert bool(flags & SLOT_DROP_PARTS) == (any(pages) and not all(pages))
    # Adjacent ranges of a slot are joined, so that one call drops them.
    ends = after.parts["offset"] + after.parts["bytes"]
    joined = (after.parts["slot"][1:] == after.parts["slot"][:-1]) & (
        after.parts["offset"][1:] == ends[:-1]
    )
    assert not joined.any()


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 31),
    st.integers(1, 8),
)
def test_a_range_is_covered_if_all_of_its_pages_are_dropped(
    wanted: list[list[bool]], slot: int, first: int, pages: int
) -> None:
    slot = min(slot, len(wanted) - 1)
    before = layout([len(one) for one in wanted])
    start = (before.slots["offset"] // PAGE).astype(np.int64)
    rows = [
        (s, int(start[s]) + at) for s, one in enumerate(wanted) for at, g in enumerate(one) if g
    ]
    of, page = np.array(rows, np.int64).reshape(-1, 2).T
    after = with_drops(before, of, page, np.ones(len(rows), np.int64), PAGE)
    found = covered(
        drops(after, PAGE), np.array([slot]), np.array([first]), np.array([pages]), PAGE
    )
    assert found.tolist() == [set(range(first, first + pages)) <= pages_of(after)[slot]]
