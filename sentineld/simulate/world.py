# SPDX-License-Identifier: Apache-2.0
"""Pages, the mover and a clock: the state of a simulated process.

The mover works page by page at the migration bandwidth. Its rules are those of
migrate/schedule.py: demotions that are due first, in order; promotions when there is
room, by their deadlines, until they are of no use; then demotions ahead of time. A page
in flight stays at its source until it is whole, and has a frame at both ends.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.plan import Space
from sentineld.simulate.cells import Cells

NEVER = 1 << 60
"""A deadline that no boundary reaches."""

AHEAD_PAGES = 256
"""Demoted ahead of time at once while promotions wait for room: a batch of the mover's."""


@dataclass(eq=False)
class Item:
    """Moves of the cells [low, high) to a tier. due, deadline, expiry: boundaries since the first.
    planned: late ones count. left: pages that may still be moved."""

    low: int
    high: int
    tier: int
    due: int
    deadline: int
    expiry: int
    planned: bool
    left: int = NEVER
    late: bool = False


@dataclass
class Counts:
    """What happened since the last reset. peak_pages: the most fast frames that were taken at one
    moment. busy_ns: what the mover needed for what it moved. born_pages: made anew on a planned
    place."""

    stall_ns: float = 0.0
    promoted_pages: int = 0
    demoted_pages: int = 0
    late_moves: int = 0
    peak_pages: int = 0
    busy_ns: float = 0.0
    born_pages: int = 0


@dataclass
class World:
    """capacity_pages: of the fast tier, None: no end to it. page_ns: for a page to move, infinite:
    none does. fast, slow: pages of each cell on either tier; both 0: absent."""

    cells: Cells
    capacity_pages: int | None
    page_ns: float
    now_ns: float = 0.0
    boundary: int = 0
    fast: Integers = field(init=False)
    slow: Integers = field(init=False)
    fast_pages: int = 0
    counts: Counts = field(default_factory=Counts)
    demotions: list[Item] = field(default_factory=list)
    promotions: list[Item] = field(default_factory=list)
    _in_flight: tuple[Item, int] | None = None
    _done_ns: float = 0.0  # of the page in flight

    def __post_init__(self) -> None:
        self.fast = np.zeros(len(self.cells.pages), np.int64)
        self.slow = np.zeros(len(self.cells.pages), np.int64)

    def room(self) -> int:
        """Fast frames that are free."""
        if self.capacity_pages is None:
            return NEVER
        return self.capacity_pages - self.fast_pages - self._held()

    def born(self, low: int, high: int) -> int:
        """Give pages to those of the cells that have none; what has no room on the fast tier is
        born slow. Returns how many pages of the cells are slow."""
        for cell in range(low, high):
            if self.fast[cell] or self.slow[cell]:
                continue
            pages = int(self.cells.pages[cell])
            fast = max(min(int(self.cells.born_fast[cell]), self.room()), 0)
            self._place(cell, fast, pages - fast)
            # What the heap serves costs as much in the all-fast step, in which it is measured.
            self.counts.born_pages += pages if self.cells.space[cell] == Space.ARENA else 0
        return int(self.slow[low:high].sum())

    def place(self, low: int, high: int, wanted: Integers) -> None:
        """As born(), with so many pages of each cell wanted on the fast tier."""
        for cell, want in zip(range(low, high), wanted.tolist(), strict=True):
            fast = max(min(want, self.room()), 0)
            self._place(cell, fast, int(self.cells.pages[cell]) - fast)

    def dropped(self, low: int, high: int) -> None:
        """The cells' pages are gone, and so is what was to be moved of them."""
        self.fast_pages -= int(self.fast[low:high].sum())
        self.fast[low:high] = 0
        self.slow[low:high] = 0
        if self._in_flight is not None and low <= self._in_flight[1] < high:
            self._in_flight, self._done_ns = None, 0.0
        if self.promotions:
            self.promotions = [i for i in self.promotions if not (low <= i.low and i.high <= high)]
        if self.demotions:
            self.demotions = [i for i in self.demotions if not (low <= i.low and i.high <= high)]

    def add(self, item: Item) -> None:
        """Queue a move; what it makes obsolete is cancelled."""
        kept = []
        for other in self.promotions:
            if other.high <= item.low or item.high <= other.low:
                kept.append(other)
            else:
                self._give_up(other)
        self.promotions = kept
        if item.tier:
            insort(self.demotions, item, key=attrgetter("due"))
            return
        self.demotions = [
            other
            for other in self.demotions
            if not (item.low <= other.low and other.high <= item.high)
        ]
        self.promotions.append(item)
        self.promotions.sort(key=attrgetter("deadline"))

    def wish(self, items: list[Item]) -> None:
        """Queue these alone, in their order: whatever was to be moved is forgotten."""
        self.demotions = [item for item in items if item.tier]
        self.promotions = [item for item in items if not item.tier]

    def run(self, until_ns: float) -> None:
        """Let the mover work until then; the clock goes there."""
        at_ns = self.now_ns
        while (found := self._next()) is not None:
            item, cell, limit = found
            pages = min(limit, int((until_ns - at_ns + self._done_ns) // self.page_ns))
            if pages <= 0:
                self._done_ns += until_ns - at_ns
                self._in_flight = found[:2] if self._done_ns > 0 else None
                break
            at_ns += pages * self.page_ns - self._done_ns
            self._in_flight, self._done_ns = None, 0.0
            self._land(item, cell, pages)
        self.now_ns = until_ns
        self._note_peak()

    def wait_for(self, due: int, promotions: bool) -> None:
        """Stand until all demotions due by then are done; promotions: also those that are late by
        now, as far as there is room. A mover that moves nothing is not waited for."""
        began_ns = self.now_ns
        while self.page_ns < float("inf"):
            left = [item for item in self.demotions if item.due <= due]
            pages = sum(int(self.fast[item.low : item.high].sum()) for item in left)
            if promotions and not pages:
                pages = self._late_pages()
            if not pages:
                break
            # What is in flight goes first, and may be a promotion.
            flight = int(self._in_flight is not None and self._in_flight[0].tier == 0)
            spent_ns = self._done_ns if not flight else 0.0
            ahead = (pages + flight) * self.page_ns - spent_ns
            self.run(self.now_ns + max(ahead, 1.0))
        self.counts.stall_ns += self.now_ns - began_ns

    def _late_pages(self) -> int:
        """Pages of promotions that are late at this boundary, and can be moved now."""
        left = [item for item in self.promotions if self.boundary >= item.deadline]
        pages = sum(int(self.slow[item.low : item.high].sum()) for item in left)
        # Births can't be held back longer than room lasts: what frees it comes after them.
        return min(pages, max(self.room() + self._held(), 0))

    def state(self) -> bytes:
        """Everything that what comes next depends on, apart from the time."""
        now = self.boundary
        queues = [
            (i.low, i.high, i.tier, i.late, *(at - now for at in (i.due, i.deadline, i.expiry)))
            for i in (*self.demotions, *self.promotions)
        ]
        flight = None if self._in_flight is None else self._in_flight[1]
        rest = repr((queues, flight, round(self._done_ns)))
        return self.fast.tobytes() + self.slow.tobytes() + rest.encode()

    def _held(self) -> int:
        """Frames that pages in flight have on the fast tier, beside those that are counted
        there."""
        return int(self._in_flight is not None and self._in_flight[0].tier == 0)

    def _place(self, cell: int, fast: int, slow: int) -> None:
        self.fast_pages += fast - int(self.fast[cell])
        self.fast[cell], self.slow[cell] = fast, slow
        self._note_peak()

    def _note_peak(self) -> None:
        taken = self.fast_pages + self._held()
        if taken > self.counts.peak_pages:
            self.counts.peak_pages = taken

    def _next(self) -> tuple[Item, int, int] | None:
        """(move, cell, how many of its pages may go) of what goes next."""
        if self.page_ns == float("inf"):
            return None
        if self._in_flight is not None:
            item, cell = self._in_flight
            left = self.slow[cell] if item.tier == 0 else self.fast[cell]
            room = self.room() + 1 if item.tier == 0 else NEVER
            if left > 0 and room > 0 and (item in self.promotions or item in self.demotions):
                return item, cell, 1
            self._in_flight, self._done_ns = None, 0.0
        if (found := self._next_demotion(self.boundary)) is not None:
            return found
        while self.promotions:
            item = self.promotions[0]
            if self.boundary >= item.expiry:
                self._give_up(self.promotions.pop(0))
                continue
            there = self.slow[item.low : item.high].nonzero()[0]
            if len(there) and item.left > 0:
                room = self.room()
                if room <= 0:
                    found = self._next_demotion(NEVER)
                    return None if found is None else (*found[:2], min(found[2], AHEAD_PAGES))
                cell = item.low + int(there[0])
                return item, cell, min(int(self.slow[cell]), room, item.left)
            self.promotions.pop(0)
        return self._next_demotion(NEVER)

    def _next_demotion(self, due: int) -> tuple[Item, int, int] | None:
        """Of those that are due by then; see _next()."""
        while self.demotions and self.demotions[0].due <= due:
            item = self.demotions[0]
            there = self.fast[item.low : item.high].nonzero()[0]
            if len(there) and item.left > 0:
                cell = item.low + int(there[0])
                return item, cell, min(int(self.fast[cell]), item.left)
            self.demotions.pop(0)
        return None

    def _give_up(self, item: Item) -> None:
        """Count a promotion that passed its deadline and was not carried out to its end."""
        if item.planned and not item.late and self.boundary >= item.deadline:
            self.counts.late_moves += int(self.slow[item.low : item.high].any())

    def _land(self, item: Item, cell: int, pages: int) -> None:
        up = item.tier == 0
        self.fast[cell] += pages if up else -pages
        self.slow[cell] -= pages if up else -pages
        self.fast_pages += pages if up else -pages
        item.left -= pages
        self.counts.busy_ns += pages * self.page_ns
        if up:
            self.counts.promoted_pages += pages
        else:
            self.counts.demoted_pages += pages
        if item.planned and not item.late and self.boundary >= item.deadline:
            item.late = True
            self.counts.late_moves += 1
        self._note_peak()
