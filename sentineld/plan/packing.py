# SPDX-License-Identifier: Apache-2.0
"""Packing: find offsets for blocks with circular lifetimes; live blocks never overlap.

A block is a tensor, or a set of tensors that lie side by side (plan/layout.py). A lifetime is
[birth, death) in events: the births and deaths of a step are numbered in order. A lifetime with
death < birth wraps around the end of the step; a lifetime with death == birth covers all events.

pack() aims at the smallest total size. pack_as_born() places the blocks in the order of births, as
an allocator would, so that blocks reuse freed memory that may still be in the caches.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers


@dataclass(frozen=True)
class Packed:
    """The result of packing N blocks, in the unit of the given sizes."""

    offsets: Integers  # (N,)
    size: int  # end of the highest block


def alive_together(
    birth: Integers, death: Integers, one_birth: int, one_death: int
) -> npt.NDArray[np.bool_]:
    """(N,): which of N circular lifetimes share an event with [one_birth, one_death)."""
    # Two circular intervals overlap if and only if one contains the first event of the other.
    return _holds(birth, death, one_birth) | _holds(one_birth, one_death, birth)


def pack(
    sizes: Integers, birth: Integers, death: Integers, units: Integers | None = None
) -> Packed:
    """Find offsets by best fit, the largest blocks first.

    Each block goes into the smallest gap that is free for its whole lifetime. Blocks whose
    lifetimes overlap never share space.

    units: (N,), alignment of each block's offset; None: no alignment.
    """
    count = len(sizes)
    offsets = np.zeros(count, np.int64)
    lives = np.where(death > birth, death - birth, np.iinfo(np.int64).max)
    order = np.lexsort((np.arange(count), -lives, -sizes))
    # Bounds and lifetimes of the placed blocks, sorted by offset.
    low, high = np.zeros(count, np.int64), np.zeros(count, np.int64)
    born, dead = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for placed, block in enumerate(order.tolist()):
        size = int(sizes[block])
        together = alive_together(
            born[:placed], dead[:placed], int(birth[block]), int(death[block])
        )
        begins = low[:placed][together]
        # The gap before each block starts at the highest end of all blocks below it.
        reached = np.concatenate([[0], np.maximum.accumulate(high[:placed][together])])
        if units is not None:
            reached = -(-reached // units[block]) * units[block]
        gaps = begins - reached[:-1]
        fitting = np.flatnonzero(gaps >= size)
        if len(fitting):
            offset = int(reached[fitting[np.argmin(gaps[fitting])]])
        else:
            offset = int(reached[-1])
        offsets[block] = offset
        at = int(np.searchsorted(low[:placed], offset))
        for array, value in (
            (low, offset),
            (high, offset + size),
            (born, int(birth[block])),
            (dead, int(death[block])),
        ):
            array[at + 1 : placed + 1] = array[at:placed].copy()
            array[at] = value
    return Packed(offsets, int((offsets + sizes).max(initial=0)))


def pack_as_born(sizes: Integers, birth: Integers, death: Integers) -> Packed:
    """Find offsets as an allocator would: serve the births of a step in order, by best fit.

    Each block takes the smallest free range that is large enough, and the lowest of several equally
    small ranges. The first event to be served is the one at which the total size of the live blocks
    is smallest. Blocks that were born earlier and are still alive at that event get ranges that no
    other block shares.
    """
    events = int(max(birth.max(initial=0), death.max(initial=0))) + 1
    begin = _emptiest(sizes, birth, death, events)
    birth, death = (birth - begin) % events, (death - begin - 1) % events + 1
    offsets = np.zeros(len(sizes), np.int64)
    around = death <= birth
    offsets[around] = np.cumsum(sizes[around]) - sizes[around]
    free = _FreeRanges(int(sizes[around].sum()))
    rows = np.flatnonzero(~around & (sizes > 0))  # free ranges are never empty
    # At the same event, deaths come before births, so that births can use the freed ranges.
    order = np.lexsort((np.repeat([1, 0], len(rows)), np.concatenate([birth[rows], death[rows]])))
    for at in order.tolist():
        row = int(rows[at % len(rows)])
        if at < len(rows):
            offsets[row] = free.take(int(sizes[row]))
        else:
            free.give(int(offsets[row]), int(sizes[row]))
    return Packed(offsets, int((offsets + sizes).max(initial=0)))


class _FreeRanges:
    """The free ranges from a first offset on, ascending and disjoint; the last range is
    unlimited."""

    def __init__(self, first: int) -> None:
        self._begins: list[int] = [first]
        self._ends: list[float] = [float("inf")]

    def take(self, size: int) -> int:
        """Allocate from the smallest range of at least this size; return the offset."""
        spans = zip(self._begins, self._ends, strict=True)
        _, at = min(
            (end - begin, at) for at, (begin, end) in enumerate(spans) if end - begin >= size
        )
        begin = self._begins[at]
        self._begins[at] += size
        if self._begins[at] == self._ends[at]:
            del self._begins[at], self._ends[at]
        return begin

    def give(self, begin: int, size: int) -> None:
        """Free an allocated range; adjacent free ranges are joined."""
        at = bisect_left(self._begins, begin)
        self._begins.insert(at, begin)
        self._ends.insert(at, begin + size)
        for left in (at, at - 1):
            if left >= 0 and self._ends[left] == self._begins[left + 1]:
                del self._ends[left], self._begins[left + 1]


def _emptiest(sizes: Integers, birth: Integers, death: Integers, events: int) -> int:
    """The event with the smallest total size of live blocks."""
    alive = np.zeros(events + 1, np.int64)
    np.add.at(alive, birth, sizes)
    np.add.at(alive, death, -sizes)
    return int(np.argmin(np.cumsum(alive)[:-1]))


def circular_peak(sizes: Integers, birth: Integers, death: Integers, event_count: int) -> int:
    """The largest total size of live blocks at any event; no packing can be smaller."""
    change = np.zeros(max(event_count, 1) + 1, np.int64)
    np.add.at(change, birth, sizes)
    np.add.at(change, death, -sizes)
    around = int(sizes[death <= birth].sum())
    return around + int(np.cumsum(change)[:-1].max(initial=0)) if len(sizes) else 0


def _holds(
    birth: Integers | int, death: Integers | int, event: Integers | int
) -> npt.NDArray[np.bool_]:
    forward = np.less(birth, death)
    inside = np.less_equal(birth, event) & np.less(event, death)
    around = np.less_equal(birth, event) | np.less(event, death)
    held: npt.NDArray[np.bool_] = np.where(forward, inside, around)
    return held
