# SPDX-License-Identifier: Apache-2.0
"""Addresses at which newborn tensors find pages that are there.

A page that is kept after its tensor's death serves who is born on it without a page
fault, but there is little room for dead pages, and at its fullest moments a step
has none. So tensors are given places in the order of their births, as an allocator
would that knows what is resident: first where the dead have left most pages. That
takes more address space than packing, which costs nothing, and less memory.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.plan.turnover import pages_there

TURNS = 2
"""Of the step: the second one begins with what the first one leaves."""

_EMPTY, _LIVE = -1, 1 << 62
"""States of a range; else it is held, since that moment."""

_ENDLESS = 1 << 50


def warm_offsets(
    pages: Integers,
    birth: Integers,
    death: Integers,
    stay: Mask,
    free: Integers,
    units: Integers,
) -> tuple[Integers, int]:
    """(offset of each tensor, size of the area), in pages; none that live together overlap.

    birth, death: moments of a step (plan/turnover.py); a death at or before the birth is in the
    next one. stay: whose pages may be held when they die. free: for each moment how many. units:
    each begins at a multiple of its own.
    """
    moments, count = len(free), len(pages)
    # From the emptiest moment on, so that few are alive over the turn's end. These share no page.
    past = np.where(death > birth, death, death + moments)
    begin = int(np.argmin(pages_there(moments, birth, past, pages))) if moments else 0
    birth, death = (birth - begin) % max(moments, 1), (death - begin) % max(moments, 1)
    free = np.roll(free, -begin)
    offsets = np.zeros(count, np.int64)
    end = 0
    for row in np.flatnonzero(death <= birth).tolist():
        offsets[row] = end = -(-end // int(units[row])) * int(units[row])
        end += int(pages[row])
    rows = np.flatnonzero(death > birth).tolist()
    changes = sorted(
        (int(at[row]), born, row) for born, at in ((True, birth), (False, death)) for row in rows
    )
    space = _Space(end)
    for turn in range(TURNS):
        last = 0
        for moment, born, row in changes:
            if moment > last:
                space.hold_at_most(int(free[last:moment].min()))
                last = moment
            if born:
                offsets[row] = space.take(int(pages[row]), int(units[row]))
            else:
                since = turn * moments + moment
                space.leave(int(offsets[row]), since if stay[row] else _EMPTY)
        space.hold_at_most(int(free[last:].min(initial=0)))
    size = int((offsets + pages).max(initial=0))
    return offsets, size


class _Space:
    """Addresses from a first one on as ranges, the last one without an end."""

    def __init__(self, first: int) -> None:
        self._begin = np.array([first], np.int64)
        self._state = np.array([_EMPTY], np.int64)

    def take(self, pages: int, unit: int) -> int:
        """A place for a newborn at a multiple of the unit: where fewest pages are missing; then
        where least is left over of the range that it begins or ends in; then the lowest."""
        begin, state = self._begin, self._state
        end = np.append(begin[1:], _ENDLESS)
        missing = np.where(state == _EMPTY, 1, 0)
        before = np.concatenate([[0], np.cumsum(missing * (end - begin))])
        taken = np.flatnonzero(state == _LIVE)
        following = np.searchsorted(taken, np.arange(len(begin)))
        room_end = np.append(begin[taken], _ENDLESS)[following]

        def at(place: Integers) -> Integers:
            found: Integers = np.searchsorted(begin, place, side="right") - 1
            return found

        places = np.concatenate([begin, end[:-1] - pages])
        if unit > 1:
            places = np.append(-(-places // unit) * unit, -(-int(begin[-1]) // unit) * unit)
        places = places[places >= begin[0]]
        inside = at(places)
        fits = (state[inside] != _LIVE) & (places + pages <= room_end[inside])
        places, inside = places[fits], inside[fits]
        last = at(places + pages - 1)
        absent = (
            before[last]
            + missing[last] * (places + pages - begin[last])
            - before[inside]
            - missing[inside] * (places - begin[inside])
        )
        left = np.where(state[inside] >= 0, places - begin[inside], 0)
        left += np.where(state[last] >= 0, end[last] - places - pages, 0)
        place = int(places[np.lexsort((places, left, absent))[0]])
        self._set(place, place + pages, _LIVE)
        return place

    def leave(self, place: int, state: int) -> None:
        """The tenant there dies. state: since when its pages are held, or that they are not."""
        self._state[np.searchsorted(self._begin, place)] = state

    def hold_at_most(self, pages: int) -> None:
        """Give back held ranges, those that have been held longest, until no more are left."""
        held = np.flatnonzero((self._state >= 0) & (self._state != _LIVE))
        size = np.diff(self._begin, append=_ENDLESS)[held]
        over = int(size.sum()) - max(pages, 0)
        for at in np.argsort(self._state[held], kind="stable").tolist():
            if over <= 0:
                break
            over -= int(size[at])
            self._state[held[at]] = _EMPTY
        joins = np.append(False, (self._state[1:] == _EMPTY) & (self._state[:-1] == _EMPTY))
        self._begin, self._state = self._begin[~joins], self._state[~joins]

    def _set(self, low: int, high: int, state: int) -> None:
        first = int(np.searchsorted(self._begin, low, side="right")) - 1
        past = int(np.searchsorted(self._begin, high, side="left"))
        begins, states = [low], [state]
        if self._begin[first] < low:
            begins.insert(0, int(self._begin[first]))
            states.insert(0, int(self._state[first]))
        if past == len(self._begin) or self._begin[past] > high:
            begins.append(high)
            states.append(int(self._state[past - 1]))
        self._begin = np.concatenate([self._begin[:first], begins, self._begin[past:]])
        self._state = np.concatenate([self._state[:first], states, self._state[past:]])
