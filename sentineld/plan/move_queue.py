# SPDX-License-Identifier: Apache-2.0
"""The queue of moves: which move runs next, and which moves are obsolete.

The mover (migrate/batches.py) and the simulator (simulate/world.py) share the rules below. The
mover applies them to pages of a process, and the simulator applies them to cells. Time is counted
in boundaries since the first step: step * boundary_count + boundary.

- Due demotions run first, in the order of their boundaries, because births wait for them. The last
  rule describes the only exception.
- Promotions run while the fast tier has room, earliest deadline first. A late promotion stays in
  the queue until its expiry and is then cancelled. The expiry is the beginning of the last stretch
  that uses the pages before their next demotion.
- If nothing else can run, demotions run ahead of time, provided that their pages are not used again
  before the planned boundary. This leaves fewer moves for later stretches, which may be shorter
  than planned.
- The newest move of a page wins. A new move cancels the promotions that it overlaps, and a new
  promotion also cancels the demotions that it covers. A drop cancels all moves that it covers.
- For promotions that are late by plan, the order depends on whether the process stalls at their
  deadline (plan/stall_trial.py). If the process stalls, it waits there until these promotions are
  done, unless the fast tier has no room for them. While it waits, these promotions run before the
  demotions that are due at the deadline itself. The promotions expire one boundary later than if
  the process did not stall. If it does not stall, promotions that are not late by plan go first.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

AHEAD_PAGES = 256
"""Maximum number of pages that are demoted ahead of time before the queued promotions are tried
again, in the simulator and on emulated tiers."""


class Span(NamedTuple):
    """The times of a queued move, in boundaries since the first step."""

    due: int  # the move's planned boundary
    deadline: int  # first boundary at which the move is late
    expiry: int  # first boundary at which a promotion is useless
    stalls: bool = False  # whether the process waits for the move at its deadline
    yields: bool = False  # whether all promotions without this flag go first


class MoveTimes(NamedTuple):
    """The times at which a planned move may run, in boundaries."""

    begin: int  # boundary, within the step, at which the move enters the queue
    ahead: int  # number of boundaries from `begin` to the move's planned boundary
    # Number of boundaries from the planned boundary to the deadline: 1 to boundary_count.
    window: int
    # Number of boundaries from the planned boundary until a promotion is useless; at least
    # `window`.
    useful: int
    late: bool = False  # whether the move is late by plan; see Plan.late

    def span(self, due: int, stalls: Callable[[int], bool]) -> Span:
        """The span of the move for the given due boundary. stalls: returns whether the process
        stalls at a boundary."""
        deadline, expiry = due + self.window, due + self.useful
        if not self.late:
            return Span(due, deadline, expiry)
        if stalls(deadline):
            return Span(due, deadline, expiry + 1, stalls=True)
        return Span(due, expiry, expiry, yields=True)


def move_times(
    moves: npt.NDArray[np.void],
    boundary_count: int,
    useful_until: npt.NDArray[np.int64] | None = None,
    ahead: npt.NDArray[np.int64] | None = None,
    late: npt.NDArray[np.bool_] | None = None,
) -> list[MoveTimes]:
    """Return the MoveTimes of each move of a plan.

    moves: (M,) of MOVE_DTYPE.
    useful_until: (M,), see expected.useful_until(); None: moves are useful until their deadline.
    ahead: (M,), see expected.ahead_of_time(); None: no move runs ahead of time.
    late: (M,), see stall_trial.late_moves(); None: no move is late by plan.
    """
    found = []
    for row, move in enumerate(moves):
        boundary = int(move["boundary"])
        window = (int(move["deadline"]) - boundary) % boundary_count or boundary_count
        useful = window if useful_until is None else max(window, int(useful_until[row]))
        early = 0 if ahead is None else int(ahead[row])
        begin = (boundary - early) % boundary_count
        found.append(MoveTimes(begin, early, window, useful, late is not None and bool(late[row])))
    return found


class QueuedMove(Protocol):
    """A move of some pages to a tier. due, deadline, expiry, stalls, yields: see Span."""

    tier: int  # 0: the move is a promotion, else a demotion
    due: int
    deadline: int
    expiry: int
    stalls: bool
    yields: bool

    def covers(self, other: Self, /) -> bool:
        """Whether this move includes all pages of the other move."""

    def overlaps(self, other: Self, /) -> bool:
        """Whether the two moves have a page in common."""


M = TypeVar("M", bound=QueuedMove)
Work = TypeVar("Work")


class MoveQueue(Generic[M]):
    """The queued moves: demotions ordered by `due`, promotions by `yields`, then `deadline`."""

    def __init__(self, cancelled: Callable[[M, str], None] | None = None) -> None:
        """cancelled: called with each cancelled move and the reason: "superseded", "absent",
        "late" or the reason given to cancel()."""
        self.demotions: list[M] = []
        self.promotions: list[M] = []
        self.blocked = False
        """Whether the last call of next_work() found that no queued promotion could run. Set by the
        promotion callback of next_work()."""
        self._cancelled = cancelled

    def add(self, move: M) -> None:
        """Queue a move and cancel the moves that it makes obsolete."""
        self.cancel(self.promotions, move.overlaps, "superseded")
        if move.tier:
            insort(self.demotions, move, key=attrgetter("due"))
        else:
            self.cancel(self.demotions, move.covers, "superseded")
            insort(self.promotions, move, key=attrgetter("yields", "deadline"))

    def replace(self, moves: Iterable[M]) -> None:
        """Discard all queued moves and queue these moves in the given order."""
        self.demotions, self.promotions = [], []
        for move in moves:
            (self.demotions if move.tier else self.promotions).append(move)

    def drop(self, covered: Callable[[M], bool]) -> None:
        """Cancel the moves whose pages the process has all given back to the kernel.

        covered: returns whether the process has given back all pages of a move.
        """
        for queue in (self.demotions, self.promotions):
            self.cancel(queue, covered, "absent")

    def clear(self, why: str) -> None:
        """Cancel all moves. why: the reason to report."""
        for queue in (self.demotions, self.promotions):
            self.cancel(queue, lambda _: True, why)

    def expire(self, now: int) -> None:
        """Cancel the promotions that are useless from boundary `now` on."""
        self.cancel(self.promotions, lambda move: now >= move.expiry, "late")

    def cancel(self, queue: list[M], obsolete: Callable[[M], bool], why: str) -> None:
        """Remove the obsolete moves from the queue and report them.

        queue: self.demotions or self.promotions.
        """
        for move in [move for move in queue if obsolete(move)]:
            self.remove(move)
            if self._cancelled is not None:
                self._cancelled(move, why)

    def remove(self, move: M) -> None:
        """Remove a move from its queue."""
        (self.demotions if move.tier else self.promotions).remove(move)

    def next_work(
        self,
        due_demotion: Callable[[], Work | None],
        promotion: Callable[[], Work | None],
        early_demotion: Callable[[], Work | None],
    ) -> Work | None:
        """Return the pages to move next, or None if no queued move can run now.

        due_demotion: returns the next pages of due demotions.
        promotion: returns the next pages of promotions, at most as many as fit into fast memory.
        early_demotion: returns the next pages of any demotion.
        """
        self.blocked = False
        if (work := due_demotion()) is not None:
            return work
        if self.promotions and (work := promotion()) is not None:
            return work
        return early_demotion()

    def due_demotions(self, now: int) -> list[M]:
        """Demotions whose planned boundary is `now` or earlier."""
        return [move for move in self.demotions if move.due <= now]

    def stalling(self, now: int) -> list[M]:
        """Promotions for which the process stalls at boundary `now`."""
        return [move for move in self.promotions if move.stalls and move.deadline == now]

    def due_first(self, now: int) -> int:
        """While the process is at boundary `now`, the demotions that are planned up to the returned
        boundary run before promotions. This boundary is `now` - 1 if the process stalls at `now`
        for a promotion, else `now`."""
        return now - 1 if self.stalling(now) else now

    def done(self, now: int) -> int:
        """Return the last boundary, at most `now`, up to which all due demotions are complete.

        For a promotion at whose deadline the process stalls, the result also stays below
        deadline - 1 until this promotion is complete. There is one exception: the process has
        reached the deadline, and no queued promotion can run (`blocked`).
        """
        held = [move.due for move in self.demotions]
        # A process that stalls at a promotion's deadline waits until boundary deadline - 1 is
        # published as done. This boundary must therefore not be published before the promotion is
        # done.
        held += [
            move.deadline - 1
            for move in self.promotions
            if move.stalls and (move.deadline > now or (move.deadline == now and not self.blocked))
        ]
        return max(min([*held, now + 1]) - 1, 0)


def is_late(move: QueuedMove, now: int) -> bool:
    """Whether the move's deadline has been reached at boundary `now`."""
    return now >= move.deadline
