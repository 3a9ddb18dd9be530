# SPDX-License-Identifier: Apache-2.0
"""Decides which pages to move now, by a plan's schedule. The schedule repeats in every step.

plan/move_queue.py implements the rules of the queue. This module takes batches of pages from the
queue, and handles full nodes and pages that the kernel does not move. The move of such a page is
tried TRIES times in all. The module only makes decisions: it uses no kernel interface, no clock and
no thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sentineld.migrate.pending import Batch, PageRange, Pages, Pending, no_pages
from sentineld.model.arrays import Table
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.plan.move_queue import MoveQueue, MoveTimes, is_late

TRIES = 3


@dataclass
class Schedule:
    """A plan's moves, and the queue of the moves that are allowed to run."""

    moves: Table
    """MOVE_DTYPE, sorted by boundary."""
    times: Sequence[MoveTimes]
    """When each of the moves may run; see move_queue.move_times()."""
    boundary_count: int
    pages_of: Callable[[Pending], Pages]
    """Returns a move's resident pages that are not on the move's target tier."""
    cancelled: Callable[[Pending, str], None]
    """Called with each cancelled move and the reason (see ledger.Entry)."""
    page_bytes: int = PAGE_BYTES
    stalls: Callable[[int], bool] = lambda _: False
    """Returns whether the process stalls at a boundary for late promotions; see StallTrial."""
    now: int = 0
    """The last boundary that the process passed, counted since the first step."""
    queue: MoveQueue[Pending] = field(init=False)
    _begins: list[list[int]] = field(init=False)  # by boundary: rows of the moves that begin there

    def __post_init__(self) -> None:
        self.queue = MoveQueue(self.cancelled)
        self._begins = [[] for _ in range(self.boundary_count)]
        for row, times in enumerate(self.times):
            self._begins[times.begin].append(row)

    def absolute(self, position: int) -> int:
        """Convert a shim's position (step << 32 | boundary) to boundaries since the first step."""
        boundary = min(position & 0xFFFFFFFF, self.boundary_count - 1)
        return (position >> 32) * self.boundary_count + boundary

    def position(self, boundary: int) -> int:
        """Convert boundaries since the first step to a shim's position; see absolute()."""
        step, at = divmod(boundary, self.boundary_count)
        return step << 32 | at

    def pass_boundary(self, drops: Table) -> None:
        """Begin the next stretch: queue the moves that begin at its boundary.

        drops: DROP_DTYPE, the ranges that the process dropped in the previous stretch.
        """
        self.now += 1
        self._pass_boundary(self.queue, self.now, drops)

    def cancel_planned(self, until: int) -> None:
        """Cancel all moves of the plan, but keep moves of misplaced pages, with boundary `until` as
        their deadline: no move of the plan replaces them."""
        for moves in (self.queue.demotions, self.queue.promotions):
            self.queue.cancel(moves, lambda move: move.reason == "plan", "superseded")
        for move in [*self.queue.demotions, *self.queue.promotions]:
            move.deadline = move.expiry = until

    def rejoin(self, target: int, drops_of: Callable[[int], Table]) -> None:
        """Follow the plan again, from any boundary of the step.

        Moves were skipped while the plan was not followed, so pages may be on tiers other than
        those in the plan. The planned moves after target would take a whole step to bring all of
        these pages to their planned tiers. So this method queues the moves that begin at the last
        boundary_count boundaries up to target (one whole step), except those that later moves or
        drops have made obsolete.

        target: the current boundary, counted since the first step.
        drops_of: returns the ranges that the process drops in a stretch (DROP_DTYPE).
        """
        past: MoveQueue[Pending] = MoveQueue()
        for passed in range(target - self.boundary_count, target):
            self._pass_boundary(past, passed + 1, drops_of(passed % self.boundary_count))
        self.now = target
        for move in [*past.demotions, *past.promotions]:
            if len(self.pages_of(move)) and (move.tier or self.now < move.expiry):
                self.queue.add(move)

    def move_now(self, row: np.void, reason: str) -> Pending:
        """Return a move for a MOVE_DTYPE row: due now, with a deadline that is one step later."""
        times = MoveTimes(0, 0, self.boundary_count, self.boundary_count)
        return self._pending(row, times, self.now, reason)

    def next_batch(
        self,
        room_bytes: Callable[[], int],
        free_bytes: Callable[[int], int],
        batch_pages: int,
        ahead_pages: int | None = None,
        exact: bool = False,
    ) -> Batch | None:
        """Return the pages to move now; None if no queued move can run now.

        room_bytes: returns the number of bytes that the budget still allows on the fast tier.
        free_bytes: takes a tier; returns the free bytes of the node to which the next pages for
            this tier would be moved.
        batch_pages: maximum number of pages in a batch.
        ahead_pages: maximum number of pages in a batch of early demotions (before their planned
            boundary) while promotions are queued. None: batch_pages.
        exact: see Memory. If true, a batch also ends after a move for which the process may be
            waiting, if it waits for the next move later or not at all; see _take().
        """
        queue = self.queue
        take = partial(self._take, exact=exact)

        def free_pages(tier: int) -> int:
            return free_bytes(tier) // self.page_bytes

        def due_demotion() -> Batch | None:
            due = queue.due_first(self.now)
            while (batch := take(queue.demotions, batch_pages, due=due)) is not None:
                if (free := free_pages(batch.tier)) > 0:
                    return batch.clipped(free)
                full = [move for move in queue.due_demotions(due) if move.tier == batch.tier]
                queue.cancel(queue.demotions, full.__contains__, "no-memory")
            return None

        def promotion() -> Batch | None:
            queue.expire(self.now)
            if not queue.promotions:
                return None
            allowed = min(room_bytes(), free_bytes(0)) // self.page_bytes
            batch = take(queue.promotions, min(batch_pages, max(allowed, 0)))
            queue.blocked = batch is None
            return batch

        def early_demotion() -> Batch | None:
            limit = batch_pages if not queue.promotions else ahead_pages or batch_pages
            batch = take(queue.demotions, limit)
            free = 0 if batch is None else free_pages(batch.tier)
            return batch.clipped(free) if batch is not None and free > 0 else None

        return queue.next_work(due_demotion, promotion, early_demotion)

    def moved(self, batch: Batch, whole: bool = False) -> None:
        """Record that a batch was carried out: remove its finished moves from the queue. whole:
        whether all pages of the batch are now on the batch's tier."""
        for move, _ in batch.parts if batch.ends_move else batch.parts[:-1]:
            done = whole and not len(move.stuck)
            if done or (move.moved_bytes and not len(self.pages_of(move))):
                self.queue.remove(move)

    def left_behind(self, move: Pending, pages: Pages, why: str) -> None:
        """Record that the kernel left these pages of the move where they were."""
        move.stuck, move.why = np.union1d(move.stuck, pages), why

    def done(self) -> int:
        """The last position up to which all moves that barriers wait for are complete; see Mover.
        The position has the shim's form: step << 32 | boundary."""
        return self.position(self.queue.done(self.now))

    def _pass_boundary(self, queue: MoveQueue[Pending], now: int, drops: Table) -> None:
        for drop in drops:
            gone = PageRange(Space.ARENA, int(drop["offset"]), int(drop["bytes"]))
            queue.drop(gone.covers)
        for row in self._begins[now % self.boundary_count]:
            times = self.times[row]
            queue.add(self._pending(self.moves[row], times, now + times.ahead, "plan"))

    def _pending(self, row: np.void, times: MoveTimes, due: int, reason: str) -> Pending:
        span = times.span(due, self.stalls)
        return Pending(
            space=Space(row["space"]),
            offset=int(row["offset"]),
            bytes=int(row["bytes"]),
            tier=int(row["tier"]),
            due=span.due,
            deadline=span.deadline,
            expiry=span.expiry,
            stalls=span.stalls,
            yields=span.yields,
            reason=reason,
        )

    def _awaited(self, move: Pending) -> int:
        """The first boundary that the result of done() cannot reach before the move has ended;
        now + 1 if the move does not limit this result at present. Boundaries are counted since the
        first step."""
        after = self.now + 1
        held = move.due if move.tier else move.deadline - 1 if move.stalls else after
        return min(held, after)

    def _take(
        self, queue: list[Pending], limit: int, exact: bool, due: int | None = None
    ) -> Batch | None:
        """Return the queue's first pages, all for one tier; None if there are no pages to move.
        Remove finished moves from the queue.

        limit: maximum number of pages.
        exact: end the batch before the first move for which _awaited() returns a later boundary
            than for the move before it. The process may be waiting until done() reaches the
            earlier boundary, and the additional move would delay this.
        due: take only moves that are due at or before this boundary; None: any.
        """
        parts: list[tuple[Pending, Pages]] = []
        taken = 0
        ends_move = False
        for move in list(queue):
            if exact and parts and self._awaited(move) > self._awaited(parts[-1][0]):
                break
            if taken >= limit or (parts and move.tier != parts[0][0].tier):
                break
            if due is not None and move.due > due:
                break
            pages = self._untried(move)
            if not len(pages):
                queue.remove(move)
                if len(move.stuck):
                    self.cancelled(move, move.why)
                elif not move.moved_bytes:
                    self.cancelled(move, "already-there")
                continue
            # A promotion for which the process stalls is late by plan, so it is not counted as a
            # late move.
            move.late = move.late or (is_late(move, self.now) and not move.stalls)
            ends_move = len(pages) <= limit - taken
            parts.append((move, pages[: limit - taken]))
            taken += len(parts[-1][1])
        return Batch(parts[0][0].tier, tuple(parts), ends_move) if parts else None

    def _untried(self, move: Pending) -> Pages:
        """The move's pages that are still to be moved. Pages that the kernel has left behind are
        tried again after all other pages."""
        wanted = self.pages_of(move)
        if not len(move.stuck):
            return wanted
        pages: Pages = np.setdiff1d(wanted, move.stuck, assume_unique=True)
        if not len(pages) and len(wanted) and move.tries + 1 < TRIES:
            move.tries += 1
            move.stuck = no_pages()
            return wanted
        if not len(wanted):
            move.stuck = no_pages()
        return pages
