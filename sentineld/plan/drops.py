# SPDX-License-Identifier: Apache-2.0
"""Drops: the arena pages that are given back to the kernel when their tensor dies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.plan import PART_DTYPE, SLOT_DROP, SLOT_DROP_PARTS, SLOT_PLANNED, Layout


def drops(layout: Layout, page_bytes: int) -> npt.NDArray[np.void]:
    """PART_DTYPE: the page ranges of all drops, sorted by slot, then offset."""
    flags = layout.slots["flags"]
    slot = np.flatnonzero((flags & SLOT_PLANNED != 0) & (flags & SLOT_DROP != 0))
    whole = np.zeros(len(slot), PART_DTYPE)
    whole["slot"] = slot
    whole["offset"] = layout.slots["offset"][slot]
    whole["bytes"] = -(-layout.slots["bytes"][slot].astype(np.int64) // page_bytes) * page_bytes
    found = np.concatenate([whole, layout.parts])
    return found[np.lexsort((found["offset"], found["slot"]))]


def drops_by_tensor(
    layout: Layout, slot: Integers, page_bytes: int
) -> tuple[npt.NDArray[np.void], Integers]:
    """(rows of drops() whose slot belongs to a tensor, index of each row's tensor).

    slot: slot of each tensor; a negative number if the tensor has no slot.
    """
    row_of = np.full(len(layout.slots), -1, np.int64)
    slotted = np.flatnonzero(slot >= 0)
    row_of[slot[slotted]] = slotted
    found = drops(layout, page_bytes)
    row = row_of[found["slot"]]
    return found[row >= 0], row[row >= 0]


def covered(
    ranges: npt.NDArray[np.void], slot: Integers, first: Integers, pages: Integers, page_bytes: int
) -> npt.NDArray[np.bool_]:
    """(N,): whether each page range is dropped as a whole.

    ranges: rows of drops().
    slot, first, pages: (N,), the page ranges: slot, first page in the arena, number of pages.
    """
    if not len(ranges):
        return np.zeros(len(slot), np.bool_)
    begin = ranges["offset"].astype(np.int64) // page_bytes
    end = begin + ranges["bytes"].astype(np.int64) // page_bytes
    # Combine slot and page into one sortable key.
    span = int(max(end.max(), first.max(initial=0))) + 1
    key = ranges["slot"].astype(np.int64) * span + begin
    at = np.searchsorted(key, slot * span + first, side="right") - 1
    last = np.maximum(at, 0)
    found: npt.NDArray[np.bool_] = (at >= 0) & (ranges["slot"][last] == slot)
    found &= first + pages <= end[last]
    return found


def with_drops(
    layout: Layout, slot: Integers, first: Integers, pages: Integers, page_bytes: int
) -> Layout:
    """The layout with its drops replaced by these page ranges.

    slot, first, pages: (N,), the page ranges: slot, first page in the arena, number of pages.
    Ranges of the same slot do not overlap.
    """
    order = np.lexsort((first, slot))
    slot, first, pages = slot[order], first[order], pages[order]
    past = first + pages
    joins = (slot[1:] == slot[:-1]) & (first[1:] == past[:-1])
    begins = np.flatnonzero(np.concatenate([[True], ~joins])) if len(slot) else np.zeros(0, int)
    ends = np.append(begins, len(slot))[1:] - 1
    parts = np.zeros(len(begins), PART_DTYPE)
    parts["slot"] = slot[begins]
    parts["offset"] = first[begins] * page_bytes
    parts["bytes"] = (past[ends] - first[begins]) * page_bytes
    size = -(-layout.slots["bytes"][parts["slot"]].astype(np.int64) // page_bytes) * page_bytes
    whole = parts["bytes"] == size
    slots = layout.slots.copy()
    slots["flags"] &= ~np.uint32(SLOT_DROP | SLOT_DROP_PARTS)
    flags, wholly, partly = slots["flags"], parts["slot"][whole], parts[~whole]
    flags[wholly] |= np.uint32(SLOT_DROP)
    flags[partly["slot"]] |= np.uint32(SLOT_DROP_PARTS)
    return replace(layout, slots=slots, parts=partly)
