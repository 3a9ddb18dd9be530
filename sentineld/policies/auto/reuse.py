# SPDX-License-Identifier: Apache-2.0
"""Address reuse: place births on resident pages of dead tensors.

If a page is kept after its tensor's death, the next tensor that is born on it causes no page fault.
But there is little room for dead pages, and no room when a step's live bytes are at their peak. To
make the most of this room, tensors are placed in the order of their births, and each tensor is
placed where the fewest of its pages are absent. This imitates an allocator that prefers free pages
that are still resident. With the same fast memory, this placement causes fewer page faults than
packing. It takes more address space, but address space costs nothing.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.plan.turnover import pages_there

TURNS = 2
"""Number of simulated steps. The second one begins with the dead pages that the first one left."""

_EMPTY, _LIVE = -1, 1 << 62
"""States of an address range: _EMPTY is not resident, _LIVE is in use. Any other value means that
the range holds dead pages; the value is the moment of their tensor's death."""

_ENDLESS = 1 << 50
"""End of the last range, in pages."""


def reusing_offsets(
    pages: Integers,
    birth: Integers,
    death: Integers,
    stay: Mask,
    free: Integers,
    units: Integers,
) -> tuple[Integers, int]:
    """(offset of each tensor, size of the area), in pages. Tensors that are alive together do not
    overlap.

    birth, death: moments of a step (plan/turnover.py). If the death is not after the birth, it is
    in the next step.
    stay: which tensors' pages may be held, that is, left resident after the tensor's death.
    free: number of dead pages that may be held at each moment.
    units: alignment of each tensor, in pages.
    """
    moments, count = len(free), len(pages)
    # Begin at the moment with the fewest live pages, so that few tensors are alive across the end
    # of a simulated step. These tensors get addresses that no other tensor uses.
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
    """Address ranges in ascending order, from page `first` upwards; the last one is unlimited."""

    def __init__(self, first: int) -> None:
        self._begin = np.array([first], np.int64)
        self._state = np.array([_EMPTY], np.int64)

    def take(self, pages: int, unit: int) -> int:
        """Place a birth at a multiple of `unit`; return its first page.

        Take the place with the fewest absent pages. Among equal places, take the one that leaves
        the fewest held pages unused beside it. If a place begins inside a range of held pages, the
        range's pages before the place count as unused. If it ends inside a range of held pages, the
        range's pages after the place count, too. If places are still equal, take the lowest one.
        """
        begin, state = self._begin, self._state
        end = np.append(begin[1:], _ENDLESS)
        is_absent = np.where(state == _EMPTY, 1, 0)
        before = np.concatenate([[0], np.cumsum(is_absent * (end - begin))])
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
            + is_absent[last] * (places + pages - begin[last])
            - before[inside]
            - is_absent[inside] * (places - begin[inside])
        )
        left = np.where(state[inside] >= 0, places - begin[inside], 0)
        left += np.where(state[last] >= 0, end[last] - places - pages, 0)
        place = int(places[np.lexsort((places, left, absent))[0]])
        self._set(place, place + pages, _LIVE)
        return place

    def leave(self, place: int, state: int) -> None:
        """End the life of the tensor at `place`.

        state: the moment of the death if the tensor's pages are held, else _EMPTY.
        """
        self._state[np.searchsorted(self._begin, place)] = state

    def hold_at_most(self, pages: int) -> None:
        """Give back held ranges, oldest first, until at most this many pages are held."""
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
