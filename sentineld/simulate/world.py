# SPDX-License-Identifier: Apache-2.0
"""The state of a simulated process: its pages, the mover and a clock.

The simulated mover moves one page at a time, at the bandwidth of the move's direction. It follows
the rules of plan/move_queue.py, as the daemon's mover does. A page in flight has a frame on both
tiers, and counts as being on its source tier until it has been moved completely.

On paged tiers, the world also follows these rules of the pager (docs/explanation/paging.md):

- All faults of a stretch read the file at the beginning of the stretch, before any page moves. A
  page that a fault has fetched stays in memory if its promotion is queued and memory has room.
  Otherwise the page is slow again, and is written back if the stretch has changed it.
- A page is not demoted in a stretch that uses it.
- A page is clean if it has been fetched and has not been changed since then. The demotion of a
  clean page takes no time.
- No page is born in the file. A birth waits for free frames until there are enough, or until no
  queued demotion can free another frame. Pages for which no frame is free after this wait, and
  pages that are born slow under the plan, get no frame at their birth and count as slow. If the
  stretch of their birth accesses these slow pages, as many of them as fit into the free frames
  occupy these frames until the stretch ends, and are then written to the file unless they have
  been dropped. The rest is written immediately.
- A page that has to be written holds a frame until it is written. So a stretch ends only when the
  pages that still have to be written fit into the free frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import Space
from sentineld.plan.move_queue import AHEAD_PAGES, MoveQueue, is_late
from sentineld.simulate.cells import Cells

NEVER = 1 << 60
"""A value that counts as infinite: a deadline after all boundaries, or an unlimited number of
pages."""


@dataclass(eq=False)
class Item:
    """A move of the cells [low, high). due, deadline, expiry, stalls, yields: see
    move_queue.Span."""

    low: int
    high: int
    tier: int
    due: int
    deadline: int
    expiry: int
    stalls: bool = False
    yields: bool = False
    left: int = NEVER
    """Number of pages that may still be moved; NEVER: unlimited."""
    late: bool = False
    """Whether the move has been counted in Counts.late_moves."""

    def covers(self, other: Item) -> bool:
        """Whether all cells of the other move are cells of this move."""
        return self.low <= other.low and other.high <= self.high

    def overlaps(self, other: Item) -> bool:
        """Whether the two moves have a cell in common."""
        return self.low < other.high and other.low < self.high


@dataclass
class Counts:
    """Counters of one step. Replay.step() creates new ones when the next step begins."""

    stall_ns: float = 0.0
    promoted_pages: int = 0
    demoted_pages: int = 0
    late_moves: int = 0
    peak_pages: int = 0
    """Maximum number of fast frames in use at one moment."""
    busy_ns: float = 0.0
    """Time in which the mover moved pages; each moved page adds World.mean_page_ns."""
    born_pages: int = 0
    """Page births in the arena."""


class _Work(NamedTuple):
    """The next pages to move: at most `pages` pages of one cell of a move."""

    item: Item
    cell: int
    pages: int
    free: bool = False
    """Whether the pages are clean, so that their demotion takes no time."""


@dataclass
class World:
    """The state of a simulated process between two events."""

    cells: Cells
    capacity_pages: int | None
    """Frames of the fast tier; None: unlimited."""
    promote_ns: float
    """Time to promote one page; infinite: nothing moves."""
    demote_ns: float
    """Time to demote one page; infinite: nothing moves."""
    paged: bool = False
    """Whether the tiers are paged; see Tiers."""
    now_ns: float = 0.0
    boundary: int = 0
    """The last boundary that was passed, counted since the first step."""
    fast: Integers = field(init=False)
    """Pages of each cell on the fast tier; an absent cell has none on either tier."""
    slow: Integers = field(init=False)
    """Pages of each cell on the slow tier."""
    fast_pages: int = 0
    """The sum of `fast` over all cells."""
    clean: Integers = field(init=False)
    """Number of clean pages of each cell; 0 unless the tiers are paged."""
    counts: Counts = field(default_factory=Counts)
    queue: MoveQueue[Item] = field(init=False)
    _in_flight: tuple[Item, int] | None = None  # the move and the cell of the page in flight
    _done_ns: float = 0.0  # time already spent on moving the page in flight
    _busy_ns: float = 0.0  # remaining time in which the slow tier serves no moves
    _changed: Mask = field(init=False)  # cells that the current stretch writes to
    _used: Mask = field(init=False)  # cells that the current stretch uses
    # Pages of each cell that were born slow in the current stretch and are not written yet.
    _unwritten: Integers = field(init=False)

    def __post_init__(self) -> None:
        self.fast = np.zeros(len(self.cells.pages), np.int64)
        self.slow = np.zeros(len(self.cells.pages), np.int64)
        self.clean = np.zeros(len(self.cells.pages), np.int64)
        self._changed = np.zeros(len(self.cells.pages), np.bool_)
        self._used = np.zeros(len(self.cells.pages), np.bool_)
        self._unwritten = np.zeros(len(self.cells.pages), np.int64)
        self.queue = MoveQueue(self._cancelled)

    def room(self) -> int:
        """Free frames of the fast tier."""
        if self.capacity_pages is None:
            return NEVER
        return self.capacity_pages - self.fast_pages - self._held()

    def born(self, low: int, high: int, busy_ns: float = 0.0) -> int:
        """Give pages to the absent cells among [low, high). Pages beyond Cells.born_fast, or beyond
        the fast tier's room, are born slow. Returns the number of slow pages in [low, high).

        busy_ns: the time for which the accesses to one slow page in this stretch use the slow tier.
            No pages can move during this time.
        """
        faults = self.paged and busy_ns > 0
        for cell in range(low, high):
            if faults:
                self._used[cell] = True
            if self.fast[cell] or self.slow[cell]:
                if faults:  # faults on slow pages that a former tensor has left here
                    self._busy_ns += int(self.slow[cell]) * busy_ns
                continue
            pages, wanted = int(self.cells.pages[cell]), int(self.cells.born_fast[cell])
            if self.paged:
                self._wait_for_frames(wanted)
            fast = max(min(wanted, self.room()), 0)
            self._place(cell, fast, pages - fast)
            if faults and fast < pages:
                self._fault_newborn(cell, pages - fast, busy_ns)
            # Count only births in the arena: births in the heap are part of the all-fast time.
            self.counts.born_pages += pages if self.cells.space[cell] == Space.ARENA else 0
        slow = int(self.slow[low:high].sum())
        if not self.paged:
            self._busy_ns += slow * busy_ns
        return slow

    def slow_after_birth(self, low: int, high: int) -> int:
        """Number of slow pages that the cells [low, high) would have if the absent cells were born
        now and the fast tier had room for all pages in Cells.born_fast."""
        absent = (self.fast[low:high] == 0) & (self.slow[low:high] == 0)
        cells = self.cells
        born = cells.pages[low:high] - np.minimum(cells.born_fast[low:high], cells.pages[low:high])
        return int(np.where(absent, born, self.slow[low:high]).sum())

    def accessed(self, busy_ns: Floats, touched: Floats, changed: Mask, back_ns: Floats) -> None:
        """Begin a stretch on paged tiers: pages that were born slow in the previous stretch are
        written to the file. Then the new stretch's accesses fault on slow pages. Cells to which
        they write have no clean pages any more.

        busy_ns: (C,), for each cell, the time for which the faults on its touched pages read the
            file, divided by the number of all its pages. Each slow page of the cell suspends moves
            for this time.
        touched: (C,), share of each cell's pages that the stretch touches. After the fault, touched
            pages stay in fast memory if their promotion is queued and memory has room. The pages
            that are not touched stay slow, and their promotion stays queued.
        changed: (C,), whether the stretch writes to the cell's pages.
        back_ns: (C,), for each cell, the time to write its touched pages back to the file, divided
            by the number of all its pages. Pages that a fault fetches but that do not stay in fast
            memory suspend moves for this time, too. They count as slow again after the access.
        """
        if unwritten := int(self._unwritten.sum()):
            self._busy_ns += unwritten * self.demote_ns
            self._unwritten[:] = 0
        self._changed, self._used = changed, busy_ns > 0
        if self._in_flight is not None and self._used[self._in_flight[1]]:
            self._in_flight, self._done_ns = None, 0.0
        self.clean[changed] = 0
        self._busy_ns += float(busy_ns @ self.slow)
        fetched = np.where(busy_ns > 0, self.slow * touched, 0.0)
        returned = np.where(touched > 0, self.slow, 0).astype(np.float64)
        for item in self.queue.promotions if fetched.any() else ():
            for cell in (item.low + fetched[item.low : item.high].nonzero()[0]).tolist():
                pages = max(min(int(fetched[cell]), self.room(), item.left), 0)
                self._shift(item, cell, pages)
                returned[cell] -= pages / touched[cell]
        self._busy_ns += float(back_ns @ returned)

    def occupied(self, busy_ns: float) -> None:
        """Move no pages for the time `busy_ns`, because accesses use the slow tier."""
        self._busy_ns += busy_ns

    def place(self, low: int, high: int, wanted: Integers) -> None:
        """Give pages to all cells of [low, high).

        wanted: number of pages of each cell to put on the fast tier if it has room.
        """
        for cell, want in zip(range(low, high), wanted.tolist(), strict=True):
            fast = max(min(want, self.room()), 0)
            self._place(cell, fast, int(self.cells.pages[cell]) - fast)

    def dropped(self, low: int, high: int) -> None:
        """Remove the pages of the cells [low, high), which the process has dropped. Cancel the
        moves that cover only cells of this range."""
        self.fast_pages -= int(self.fast[low:high].sum())
        self.fast[low:high] = 0
        self.slow[low:high] = 0
        self.clean[low:high] = 0
        self._unwritten[low:high] = 0
        if self._in_flight is not None and low <= self._in_flight[1] < high:
            self._in_flight, self._done_ns = None, 0.0
        self.queue.drop(lambda item: low <= item.low and item.high <= high)

    def run(self, until_ns: float) -> None:
        """Advance the clock to until_ns and move pages during this time."""
        at_ns = min(self.now_ns + self._busy_ns, until_ns)
        self._busy_ns -= at_ns - self.now_ns
        while (work := self._next()) is not None:
            item, cell, limit = work.item, work.cell, work.pages
            if work.free:
                self._land(item, cell, limit, free=True)
                continue
            page_ns = self._page_ns(item)
            pages = min(limit, int((until_ns - at_ns + self._done_ns) // page_ns))
            if pages <= 0:
                self._done_ns += until_ns - at_ns
                self._in_flight = (item, cell) if self._done_ns > 0 else None
                break
            at_ns += pages * page_ns - self._done_ns
            self._in_flight, self._done_ns = None, 0.0
            self._land(item, cell, pages)
        self.now_ns = until_ns
        self._note_peak()

    def wait_for(self, due: int) -> None:
        """Stall until all demotions due at or before boundary `due` are done. Then stall for the
        promotions that the process waits for at the current boundary, but only for as many of their
        pages as fit into the fast tier."""
        began_ns = self.now_ns
        while self.promote_ns < float("inf"):
            awaited = self.queue.due_demotions(due)
            pages = sum(int(self.fast[item.low : item.high].sum()) for item in awaited)
            page_ns = self.demote_ns
            if not pages:
                awaited = self.queue.stalling(self.boundary)
                pages, page_ns = self._stalling_pages(awaited), self.promote_ns
            if not pages:
                break
            ahead_ns = pages * page_ns - self._done_ns + self._busy_ns
            if self._in_flight is not None and self._in_flight[0] not in awaited:
                # The page in flight is moved first, although the process does not wait for it.
                ahead_ns += self._page_ns(self._in_flight[0])
            self.run(self.now_ns + max(ahead_ns, 1.0))
        self.counts.stall_ns += self.now_ns - began_ns

    def wait_for_writes(self) -> None:
        """End a stretch on paged tiers: stall until the pages that have to be written to the file
        fit into the free frames.

        In the pager, the accesses wait for these frames one by one. Here they wait together, at the
        end of their stretch.
        """
        if self.promote_ns == float("inf"):
            return
        ahead_ns = self._busy_ns - max(self.room(), 0) * self.demote_ns
        if ahead_ns > 0:
            self.run(self.now_ns + ahead_ns)
            self.counts.stall_ns += ahead_ns

    def _fault_newborn(self, cell: int, pages: int, busy_ns: float) -> None:
        """Occupy the slow tier with the faults on newborn slow pages of a cell, and with the writes
        of those for which no frame is free. busy_ns: see born()."""
        free = max(self.room() - int(self._unwritten.sum()), 0)
        self._unwritten[cell] = min(pages, free)
        self._busy_ns += pages * busy_ns + max(pages - free, 0) * self.demote_ns

    def _wait_for_frames(self, pages: int) -> None:
        """Stall until this many frames are free, or until no queued demotion can free more."""
        began_ns = self.now_ns
        while self.promote_ns < float("inf") and (missing := pages - self.room()) > 0:
            # Demote the clean pages at the head of the queue, which takes no time.
            self.run(self.now_ns)
            if self.room() >= pages:
                break
            if self._demotion(NEVER) is None:
                break
            ahead_ns = self._busy_ns + missing * self.demote_ns - self._done_ns
            self.run(self.now_ns + max(ahead_ns, 1.0))
        self.counts.stall_ns += self.now_ns - began_ns

    @property
    def mean_page_ns(self) -> float:
        """Time to move a page, averaged over both directions."""
        return (self.promote_ns + self.demote_ns) / 2

    def _page_ns(self, item: Item) -> float:
        return self.demote_ns if item.tier else self.promote_ns

    def _stalling_pages(self, promotions: list[Item]) -> int:
        """Number of pages for which the process stalls: those pages of these promotions that are
        still slow, but no more than fit into the fast tier."""
        pages = sum(int(self.slow[item.low : item.high].sum()) for item in promotions)
        # Don't wait for more pages than fit into the fast tier: a process that waits drops no
        # pages, so it makes no room for more.
        return min(pages, max(self.room() + self._held(), 0))

    def state(self) -> bytes:
        """Everything that the following steps depend on, except the time."""
        now = self.boundary
        queues = [
            (
                *(i.low, i.high, i.tier, i.late, i.stalls, i.yields),
                *(at if at == NEVER else at - now for at in (i.due, i.deadline, i.expiry)),
            )
            for i in (*self.queue.demotions, *self.queue.promotions)
        ]
        flight = None if self._in_flight is None else self._in_flight[1]
        rest = repr((queues, flight, round(self._done_ns), round(self._busy_ns)))
        pages = (self.fast, self.slow, self.clean, self._unwritten)
        return b"".join(one.tobytes() for one in pages) + rest.encode()

    def _held(self) -> int:
        """Number of fast frames that a promotion in flight holds; fast_pages excludes them."""
        return int(self._in_flight is not None and self._in_flight[0].tier == 0)

    def _place(self, cell: int, fast: int, slow: int) -> None:
        self.fast_pages += fast - int(self.fast[cell])
        self.fast[cell], self.slow[cell], self.clean[cell] = fast, slow, 0
        self._note_peak()

    def _note_peak(self) -> None:
        taken = self.fast_pages + self._held()
        if taken > self.counts.peak_pages:
            self.counts.peak_pages = taken

    def _next(self) -> _Work | None:
        if self.promote_ns == float("inf"):
            return None
        if self._in_flight is not None:
            item, cell = self._in_flight
            left = self.slow[cell] if item.tier == 0 else self.fast[cell]
            room = self.room() + 1 if item.tier == 0 else NEVER
            queued = item in (self.queue.demotions if item.tier else self.queue.promotions)
            if left > 0 and room > 0 and queued:
                return _Work(item, cell, 1)
            self._in_flight, self._done_ns = None, 0.0
        return self.queue.next_work(self._due_demotion, self._promotion, self._early_demotion)

    def _due_demotion(self) -> _Work | None:
        return self._demotion(self.queue.due_first(self.boundary))

    def _promotion(self) -> _Work | None:
        queue = self.queue.promotions
        while queue:
            item = queue[0]
            if self.boundary >= item.expiry:
                self._cancelled(queue.pop(0), "late")
                continue
            there = self.slow[item.low : item.high].nonzero()[0]
            if len(there) and item.left > 0:
                room = self.room()
                if room <= 0:
                    return None
                cell = item.low + int(there[0])
                return _Work(item, cell, min(int(self.slow[cell]), room, item.left))
            queue.pop(0)
        return None

    def _early_demotion(self) -> _Work | None:
        work = self._demotion(NEVER)
        if work is None or not self.queue.promotions:
            return work
        return work._replace(pages=min(work.pages, AHEAD_PAGES))

    def _demotion(self, due: int) -> _Work | None:
        """The next pages of demotions that are due at or before boundary `due`."""
        queue, at = self.queue.demotions, 0
        while at < len(queue) and queue[at].due <= due:
            item = queue[at]
            there = self.fast[item.low : item.high].nonzero()[0]
            if self.paged and len(there):
                there = there[~self._used[item.low + there]]
                if not len(there):
                    at += 1
                    continue
            if len(there) and item.left > 0:
                cell = item.low + int(there[0])
                if self.clean[cell]:
                    return _Work(item, cell, min(int(self.clean[cell]), item.left), free=True)
                return _Work(item, cell, min(int(self.fast[cell]), item.left))
            queue.pop(at)
        return None

    def _cancelled(self, item: Item, why: str) -> None:
        """Count a cancelled promotion as late if it is overdue and unfinished and its pages still
        exist."""
        if why == "absent" or item.tier or item.late:
            return
        if is_late(item, self.boundary):
            self.counts.late_moves += int(self.slow[item.low : item.high].any())

    def _land(self, item: Item, cell: int, pages: int, free: bool = False) -> None:
        if free:
            self.clean[cell] -= pages
        else:
            # Each page adds the mean of the times of both directions, which differ only on paged
            # tiers. Corrector (plan/correct.py) compares the moved bytes, divided by busy_ns, with
            # Tiers.migration_bytes_per_s, which is also a mean of both directions.
            self.counts.busy_ns += pages * self.mean_page_ns
            if item.tier == 0:
                self.counts.promoted_pages += pages
            else:
                self.counts.demoted_pages += pages
        self._shift(item, cell, pages)

    def _shift(self, item: Item, cell: int, pages: int) -> None:
        """Put pages of the cell on the move's target tier."""
        up = item.tier == 0
        self.fast[cell] += pages if up else -pages
        self.slow[cell] -= pages if up else -pages
        self.fast_pages += pages if up else -pages
        item.left -= pages
        if self.paged and up and not self._changed[cell]:
            self.clean[cell] += pages
        if not (item.late or item.stalls) and is_late(item, self.boundary):
            item.late = True
            self.counts.late_moves += 1
        self._note_peak()
