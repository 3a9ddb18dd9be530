# SPDX-License-Identifier: Apache-2.0
"""Migration intervals and the two constraints on their length.

An interval is a fixed number of consecutive stretches (the migration interval length, MIL). The
pages that an interval uses are promoted in the interval before it. In `sentinel+spill`, they may
also be promoted in the interval that uses them, and once all moves are planned, Fitting.advance()
can make the promotions start earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.plan.items import Items


@dataclass(frozen=True)
class Interval:
    """An interval length, and whether it meets the published constraints."""

    stretches: int
    """The length of the interval, in stretches."""

    need_pages: int
    """Tensor(MIL): the largest number of pages that one interval uses."""

    fits_space: bool
    """Tensor(MIL) < S - RS(MIL) in all intervals: the pages that an interval uses fit into fast
    memory (S) beside the pool of short-lived tensors (RS)."""

    fits_time: bool
    """Tensor(MIL) / BW <= T(MIL) in all intervals: each interval is long enough to move the pages
    that the next interval uses. Pages that both intervals use, and pages that are born in the next
    interval, are not counted."""


def powers_of_two(count: int) -> list[int]:
    """Interval lengths for `sentinel+spill`: powers of two up to half of the step."""
    found = [1]
    while found[-1] * 4 <= count:
        found.append(found[-1] * 2)
    return found


class Constraints:
    """Checks interval lengths against the published constraints."""

    def __init__(self, items: Items, room: float, moves: Floats) -> None:
        """room: fast pages beside the pool. moves: (S,), pages that each stretch can move."""
        count, number = items.worth.shape
        self._pages, self._room, self._moves = items.pages.astype(np.float64), room, moves
        self._uses: Mask = items.by_stretch(items.worth) > 0
        self._born = np.zeros((count, number), np.bool_)
        transient = np.flatnonzero(~items.persistent)
        self._born[items.birth[transient], transient] = True

    def interval(self, stretches: int) -> Interval:
        """Check an interval length."""
        begins = np.arange(0, len(self._uses), stretches)
        used = np.logical_or.reduceat(self._uses, begins, axis=0)
        born = np.logical_or.reduceat(self._born, begins, axis=0)
        need = used @ self._pages
        # Pages that the preceding interval also used are already fast, and births need no move.
        moved = (used & ~born & ~np.roll(used, 1, axis=0)) @ self._pages
        time = np.roll(np.add.reduceat(self._moves, begins), 1)
        return Interval(
            stretches=stretches,
            need_pages=int(need.max(initial=0)),
            fits_space=bool(np.all(need < self._room)),
            fits_time=bool(np.all(moved <= time)),
        )


def coming_use(items: Items) -> Integers:
    """(S + 1, N): as Items.next_use(), except that the next use of a persistent chunk can be in the
    next step, whose positions begin at S."""
    count, next_use = items.stretch_count, items.next_use()
    around = np.where(items.persistent, next_use[0] + count, 3 * count)
    found: Integers = np.minimum(next_use, around)
    return found


def may_enter(items: Items, stretches: int) -> Mask:
    """(S, N): whether each chunk may be promoted in each position (a stretch of the chunk's
    lifetime; see Lives). It may if it is used later in the interval that contains this stretch, or
    in the next interval."""
    count = items.stretch_count
    until_use = coming_use(items)[1:] - np.arange(count)[:, None]
    allowed: Mask = until_use <= stretches_ahead(count, stretches)[items.stretch_of()]
    return allowed


def pooled_moves(moves: Floats, least: int) -> Floats:
    """If a stretch is too short to move one chunk, add its move capacity to the preceding stretch.

    A move that starts in the preceding stretch continues in the short stretch.

    moves: capacity of each stretch, in pages. least: pages of the largest chunk.
    """
    pooled = moves.copy()
    for at in range(len(pooled) - 1, -1, -1):
        if pooled[at] < least:
            pooled[at - 1] += pooled[at]
            pooled[at] = 0.0
    return pooled


def stretches_ahead(count: int, stretches: int) -> Integers:
    """(S,): number of stretches from each stretch to the last stretch of the next interval. The
    step's last interval is followed by the first interval of the next step."""
    at = np.arange(count)
    begin = at // stretches * stretches
    end = np.minimum(begin + stretches, count)
    after = np.minimum(end % count + stretches, count)
    following = np.where(end == count, count + np.minimum(stretches, count), after)
    ahead: Integers = following - 1 - at
    return ahead
