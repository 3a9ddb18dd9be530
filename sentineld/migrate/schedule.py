# SPDX-License-Identifier: Apache-2.0
"""Which moves now? Pure decisions over a plan's circular schedule; no kernel, no clock, no thread.

Time is counted in boundaries since the first step: step * boundary_count +
boundary. Rules:

- Demotions that are due go first, in order, and are never held back: births wait for them.
- A promotion goes when there is room, earliest deadline first. Past its deadline
  it still goes, counted late, while a stretch that uses the tensor is yet to
  begin before the tensor is moved away again; then it is cancelled.
- When there is nothing else to do, demotions whose pages nobody uses until they are due go
  ahead of time: where a stretch takes longer than foreseen, the next ones may take less.
- The newest word on a range counts: a move cancels promotions that it overlaps,
  a promotion also demotions that it covers, a drop all that it covers.
- Pages that the kernel leaves behind are tried again, TRIES times in all.
- Where the plan stalls for late promotions, done() holds these back, too, as long as
  there is room for them; they are then of use at their deadline still.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from sentineld.migrate.moves import Batch, Pages, Pending, no_pages
from sentineld.model.arrays import Table
from sentineld.model.plan import Space

TRIES = 3


@dataclass
class Schedule:
    """The queue. moves: MOVE_DTYPE sorted by boundary; useful_until: boundaries after the move's
    own (expected.useful_until), None: until the deadline. ahead: boundaries before it at which the
    move may begin (expected.ahead_of_time), None: at its own alone. pages_of tells which resident
    pages of a move are not where they should be. cancelled(move, why) hears of every move given
    up. stalls_for_promotions: see Plan."""

    moves: Table
    boundary_count: int
    pages_of: Callable[[Pending], Pages]
    cancelled: Callable[[Pending, str], None]
    useful_until: npt.NDArray[np.int64] | None = None
    page_bytes: int = 4096
    ahead: npt.NDArray[np.int64] | None = None
    now: int = 0
    demotions: list[Pending] = field(default_factory=list)
    promotions: list[Pending] = field(default_factory=list)
    stalls_for_promotions: bool = False
    _blocked: bool = False  # no room for the promotions that there are
    _begins: list[list[int]] = field(init=False)  # rows of moves, by boundary

    def __post_init__(self) -> None:
        self._begins = [[] for _ in range(self.boundary_count)]
        begins = self.moves["boundary"].astype(np.int64)
        if self.ahead is not None:
            begins = (begins - self.ahead) % self.boundary_count
        for row, boundary in enumerate(begins.tolist()):
            self._begins[boundary].append(row)

    def absolute(self, position: int) -> int:
        """Boundaries since the first step at a position of the shim."""
        boundary = min(position & 0xFFFFFFFF, self.boundary_count - 1)
        return (position >> 32) * self.boundary_count + boundary

    def pass_boundary(self, drops: Table) -> None:
        """The stretch ends, with what the process gave back in it (DROP_DTYPE): the next one's
        moves become due."""
        for drop in drops:
            self.drop(Space.ARENA, int(drop["offset"]), int(drop["bytes"]))
        self.advance()

    def advance(self) -> None:
        """One more boundary passes: its moves become due."""
        self.now += 1
        for row in self._begins[self.now % self.boundary_count]:
            move = self.moves[row]
            due = self.now + (0 if self.ahead is None else int(self.ahead[row]))
            window = (int(move["deadline"]) - int(move["boundary"])) % self.boundary_count
            window = window or self.boundary_count
            useful = window if self.useful_until is None else int(self.useful_until[row])
            self.add(
                Pending(
                    due=due,
                    deadline=due + window,
                    useful_until=due + max(window, useful),
                    space=int(move["space"]),
                    tier=int(move["tier"]),
                    offset=int(move["offset"]),
                    bytes=int(move["bytes"]),
                    reason="plan",
                )
            )

    def rejoin(self, target: int, drops_of: Callable[[int], Table]) -> None:
        """Enter the circle in its midst: what the last circle's moves would have done is due.

        target: boundaries since the first step. drops_of(stretch): DROP_DTYPE rows of what dies in
        it. While nobody followed the plan pages went anywhere, and its own moves would need a
        whole step to take them back.
        """
        past = replace(self, cancelled=lambda *_: None, demotions=[], promotions=[])
        past.now = target - self.boundary_count
        while past.now < target:
            past.pass_boundary(drops_of(past.now % self.boundary_count))
        self.now = target
        for move in [*past.demotions, *past.promotions]:
            if len(self.pages_of(move)) and (move.tier or self.now < self._expiry(move)):
                self.add(move)

    def add(self, move: Pending) -> None:
        """Queue a move; what it makes obsolete is cancelled."""
        self._cancel(self.promotions, move.overlaps, "superseded")
        if move.tier:
            insort(self.demotions, move, key=attrgetter("due"))
        else:
            self._cancel(self.demotions, move.covers, "superseded")
            self.promotions.append(move)

    def drop(self, space: int, offset: int, size: int) -> None:
        """The pages of a range are gone: forget the moves within it."""
        gone = Pending(0, 0, 0, space, 0, offset, size, "drop")
        for queue in (self.demotions, self.promotions):
            self._cancel(queue, gone.covers, "absent")

    def clear(self, why: str) -> None:
        """Give up everything."""
        for queue in (self.demotions, self.promotions):
            self._cancel(queue, lambda _: True, why)

    def next_batch(
        self,
        room_bytes: Callable[[], int],
        free_bytes: Callable[[int], int],
        batch_pages: int,
    ) -> Batch | None:
        """What to move now, or None: nothing is due, or there is no room for what is.

        room_bytes: what the budget still allows on the fast tier; free_bytes(tier):
        memory that the tier's nodes have left.
        """
        while (batch := self._take(self.demotions, batch_pages, self.now)) is not None:
            free_pages = free_bytes(batch.tier) // self.page_bytes
            if free_pages > 0:
                return batch.clipped(free_pages)
            full = [m for m in self.demotions if m.tier == batch.tier and m.due <= self.now]
            self._cancel(self.demotions, full.__contains__, "no-memory")
        self._cancel(self.promotions, lambda move: self.now >= self._expiry(move), "late")
        self._blocked = False
        if self.promotions:
            self.promotions.sort(key=lambda move: move.deadline)
            allowed = min(room_bytes(), free_bytes(0)) // self.page_bytes
            batch = self._take(self.promotions, min(batch_pages, max(allowed, 0)))
            self._blocked = batch is None
            if batch is not None:
                return batch
        batch = self._take(self.demotions, batch_pages)
        free_pages = 0 if batch is None else free_bytes(batch.tier) // self.page_bytes
        return batch.clipped(free_pages) if batch is not None and free_pages > 0 else None

    def moved(self, batch: Batch) -> None:
        """A batch has been carried out: forget what it has brought to its end."""
        for move, _ in batch.parts:
            if move.moved_bytes and not len(self.pages_of(move)):
                (self.demotions if move.tier else self.promotions).remove(move)

    def left_behind(self, move: Pending, pages: Pages, why: str) -> None:
        """The kernel left these pages of the move where they were."""
        move.stuck, move.why = np.union1d(move.stuck, pages), why

    def done(self) -> int:
        """The position up to which all demotions are complete, and what else is waited for."""
        held = [move.due for move in self.demotions]
        if self.stalls_for_promotions and not self._blocked:
            # The boundary of the deadline waits for the one before it.
            held += [move.deadline - 1 for move in self.promotions]
        first = min([*held, self.now + 1])
        step, boundary = divmod(max(first - 1, 0), self.boundary_count)
        return step << 32 | boundary

    def _expiry(self, move: Pending) -> int:
        return max(move.deadline, move.useful_until) + self.stalls_for_promotions

    def _take(self, queue: list[Pending], limit: int, due: int | None = None) -> Batch | None:
        """Up to limit pages from the queue's begin, all to one tier; finished moves leave it. due:
        of moves that are due by then alone."""
        parts: list[tuple[Pending, Pages]] = []
        taken = 0
        for move in list(queue):
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
            move.late = move.late or self.now >= move.deadline
            parts.append((move, pages[: limit - taken]))
            taken += len(parts[-1][1])
        return Batch(parts[0][0].tier, tuple(parts)) if parts else None

    def _untried(self, move: Pending) -> Pages:
        """Pages still to move; those left behind come again once all others are done."""
        wanted = self.pages_of(move)
        pages: Pages = np.setdiff1d(wanted, move.stuck, assume_unique=True)
        if not len(pages) and len(wanted) and move.tries + 1 < TRIES:
            move.tries += 1
            move.stuck = no_pages()
            return wanted
        if not len(wanted):
            move.stuck = no_pages()
        return pages

    def _cancel(self, queue: list[Pending], obsolete: Callable[[Pending], bool], why: str) -> None:
        for move in [move for move in queue if obsolete(move)]:
            queue.remove(move)
            self.cancelled(move, why)
