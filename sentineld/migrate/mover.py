# SPDX-License-Identifier: Apache-2.0
"""The mover: a thread that carries out a plan's moves as the process passes boundaries."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.migrate.accounts import is_promotion
from sentineld.migrate.boundary_tracker import BoundaryTracker
from sentineld.migrate.pace import Pace
from sentineld.migrate.pending import Batch
from sentineld.migrate.ports import PageBackend, PlannedStep, ProcessPorts, Result
from sentineld.migrate.process_memory import Wait
from sentineld.migrate.syscalls import page_ranges
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers
from sentineld.plan.by_layer import PageTiers
from sentineld.plan.stall_trial import Decisions

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""Longest time without a look at the process's position while the mover is idle."""

_LAST_BOUNDARY = 0xFFFFFFFF


class Mover:
    """Moves one session's pages: first in enter(), then from start() to stop().

    The mover publishes the position (moves_done) up to which all due demotions are complete,
    because births wait for demotions. If the process stalls at a promotion's deadline
    (plan/stall_trial.py), it waits until boundary `deadline - 1` is published. The mover publishes
    that boundary only when the promotion has left the queue or fast memory has no room for
    promotions.
    plan/move_queue.py decides which move runs next, and Charge computes how much may be promoted
    within the budget. BoundaryTracker keeps the map and the queue up to date.
    """

    def __init__(
        self,
        tiers: Tiers,
        planned: PlannedStep,
        process: ProcessPorts,
        budget_bytes: int,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        """budget_bytes: the session's budget, to which unmanaged bytes are charged, too. It exceeds
        plan.budget_bytes by the unmanaged bytes for which the plan has left room."""
        plan = planned.plan
        self.pid = process.pid
        self._tracker = BoundaryTracker(tiers, planned, process, budget_bytes, page_bytes)
        self.ledger = self._tracker.ledger
        self._spaces, self._charge = self._tracker.spaces, self._tracker.charge
        self._accounts, self._schedule = self._tracker.accounts, self._tracker.schedule
        self._watched = self._tracker.watched
        self._heap = process.spaces.get(Space.HEAP, (0, 0))
        self._memory = process.memory
        self._pace = Pace(self.ledger, self._memory, plan.moves, page_bytes)
        self._initial = plan.initial
        self._published = 0
        self._page_bytes = page_bytes
        self._publish, self._read_position = process.publish, process.position
        self._request_wake_up = process.wake_at
        self._wake_at_next_step = process.wake_at_next_step
        self._ended, self._clock = process.ended, process.clock
        self._wake = threading.Condition()
        self._position = 0  # guarded by _wake, like the fields below
        self._wake_at = 0  # notify() wakes the mover from this boundary on; see _set_wake_up()
        self._fresh = False
        self._fresh_ns = 0
        self._paused = False
        self._restart = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Move persistent tensors to their initial tiers, in the caller's thread.

        If a tier has no room, or the budget has none for a promotion, the thread that start()
        creates moves the remaining pages later.
        Raises ProcessLookupError if the process is gone, SentinelError if the kernel refuses.
        """
        with self._watched.disarmed(lambda: [self._heap]):
            self._spaces.maps[Space.HEAP].refresh(self._memory)
        for move in sorted(self._tracker.moves_of(self._initial, "initial"), key=is_promotion):
            while len(pages := np.setdiff1d(self._tracker.pages_of(move), move.stuck)):
                _, free = self._memory.best_node(move.tier)
                if is_promotion(move):
                    # Charge.room_bytes() is not known yet, because it depends on the stretch. So
                    # room for later births is not set aside here.
                    free = min(free, self._charge.budget_bytes - self._charge.charged_bytes())
                limit = min(self._memory.batch_pages, free // self._page_bytes)
                if limit <= 0:
                    self._accounts.given_up(move, "no-room")
                    break
                self._execute(Batch(move.tier, ((move, pages[:limit]),)))
            else:
                if len(move.stuck):
                    self._accounts.given_up(move, move.why)

    def begin(self, position: int) -> None:
        """Make work() follow the process from this position on."""
        with self._wake:
            self._position, self._restart = position, True
            self._wake_up()

    def start(self, position: int) -> None:
        """Start a thread that follows the process from this position on."""
        self.begin(position)
        thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"mover-{self.pid}", daemon=True
        )
        thread.start()
        self._thread = thread  # set last: stop() can't join a thread that was not started

    def notify(self, position: int) -> None:
        """Report that the process has reached a position (step << 32 | boundary)."""
        with self._wake:
            if position > self._position:
                self._position = position
                if self._schedule.absolute(position) >= self._wake_at:
                    self._wake_up()

    def pause(self) -> None:
        """Cancel all moves after a divergence; the process then waits for no move."""
        with self._wake:
            self._paused = True
            self._wake_up()

    def resume(self, position: int) -> None:
        """Move pages again: the process has followed the plan since this position."""
        with self._wake:
            self._paused, self._restart = False, True
            self._position = max(self._position, position)
            self._wake_up()

    def refresh(self) -> None:
        """Read residency from the kernel at the next beginning of a step at which no pages are
        watched."""
        self._tracker.refresh()

    def watch(self, backend: PageBackend, begin: Callable[[], None]) -> None:
        """Call begin(), which arms pages, between two moves. From then on, the mover disarms the
        pages of each move or query before it, and arms them again after it."""
        self._watched.begin(backend, begin)

    def unwatch(self, end: Callable[[], Result]) -> Result:
        """Call end(), which disarms all pages, between two moves. From then on, moves and queries
        no longer disarm and arm pages. Returns the result of end()."""
        return self._watched.end(end)

    @property
    def gaps(self) -> int:
        """See PlanMover.gaps. A gap is a read of the residency after a restart."""
        return self._watched.gaps

    @property
    def done_position(self) -> int:
        """The position published last."""
        return self._published

    @property
    def residency_known(self) -> bool:
        """Whether the residency of arena and heap has been read into the map; see Charge."""
        return self._charge.residency_known

    def stall_decisions(self) -> Decisions:
        """The number of boundaries with each decision of the stall trials; see StallTrial."""
        return self._tracker.trial.decisions

    def fast_bytes(self, barriers_hold: bool = True) -> int:
        """Fast bytes charged now, according to the mover's map. barriers_hold: see Charge."""
        return self._charge.charged_bytes(barriers_hold)

    def by_tier(self, barriers_hold: bool = True) -> list[int]:
        """Resident bytes of arena and heap by tier, according to the mover's map. barriers_hold:
        see Charge."""
        return self._charge.resident_bytes(barriers_hold)

    def page_tiers(self, barriers_hold: bool = True) -> PageTiers:
        """The tier of each page of arena and heap, according to the mover's map. barriers_hold: see
        Charge."""
        return self._charge.page_tiers(barriers_hold)

    def stop(self) -> None:
        """End the thread after the move_pages call under way. On emulated tiers this call is
        interrupted."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while (since_ns := self._wait()) is not None:
                self.work(since_ns)
        except ProcessLookupError:
            self._ended("the process is gone")
        except (SentinelError, OSError) as error:
            log.warning(
                "mover of process %d stopped: %s",
                self.pid,
                error,
                extra=about(LogEvent.MOVER_STOPPED),
            )
            self._ended(str(error))
        except Exception:
            # Without a mover, the process would wait at each barrier until it times out.
            log.exception(
                "mover of process %d stopped: internal error",
                self.pid,
                extra=about(LogEvent.INTERNAL_ERROR),
            )
            self._ended("internal error of the daemon")

    def _wait(self) -> int | None:
        """Wait for _wake_up(), but for at most IDLE_S. Returns the time of the earliest _wake_up()
        that is not handled yet (after a time-out: now), or None if the mover is stopping."""
        with self._wake:
            if not (self._fresh or self._stopping):
                self._wake.wait(IDLE_S)
            since_ns = self._fresh_ns if self._fresh else self._clock.now_ns()
            self._fresh = False
            return None if self._stopping else since_ns

    def _wake_up(self) -> None:
        """Make the mover follow the process; the caller holds _wake."""
        if not self._fresh:
            self._fresh, self._fresh_ns = True, self._clock.now_ns()
        self._wake.notify()

    def work(self, since_ns: int | None = None) -> None:
        """Follow the process and move pages until no queued move can run.

        since_ns: see Memory.begin_series(); None: now.
        """
        batch_bytes = self._memory.batch_pages * self._page_bytes
        self._memory.begin_series(self._clock.now_ns() if since_ns is None else since_ns)
        self._pace.begin()
        while self._follow():
            batch = self._schedule.next_batch(
                partial(self._charge.room_bytes, batch_bytes),
                lambda tier: self._memory.best_node(tier)[1],
                self._memory.batch_pages,
                self._memory.ahead_pages,
                self._memory.exact,
            )
            self._announce(self._schedule.done())
            if batch is None:
                self._set_wake_up()
                return
            moved_bytes, error = self._execute(batch, self._wait_in_move)
            self._schedule.moved(batch, whole=moved_bytes == batch.pages * self._page_bytes)
            self._announce(self._schedule.done())
            self._pace.batch(moved_bytes, error == errno.EINTR)

    def _set_wake_up(self) -> None:
        """The mover has nothing to do for the moment: let notify() wake it at the next boundary at
        which it has something to do."""
        boundary = self._tracker.next_boundary()
        if boundary is None:
            boundary = self._schedule.now + 1
        with self._wake:
            self._wake_at = boundary
        self._request_wake_up(self._schedule.position(boundary))

    def _follow(self) -> bool:
        """Catch up with the process; returns False if the mover is paused or stopping."""
        latest = self._read_position() if self._read_position is not None else 0
        with self._wake:
            position = self._position = max(self._position, latest)
            self._fresh, self._wake_at = False, 0
            paused, restart, stopping = self._paused, self._restart, self._stopping
            if not paused:
                self._restart = False
        if stopping:
            return False
        if paused:
            self._schedule.queue.clear("paused")
            self._announce(position | _LAST_BOUNDARY)
            # The process must not wait in the next step, either.
            self._wake_at_next_step(position)
            return False
        self._tracker.follow(position, restart)
        return True

    def _announce(self, position: int) -> None:
        """Publish moves_done, which never decreases."""
        self._published = max(self._published, position)
        self._charge.done = self._schedule.absolute(self._published)
        self._publish(self._published)

    def _wait_in_move(self, duration_ns: int) -> bool:
        """Wait during a move; returns True if the move has to end (see Wait).

        A move has to end when the mover is paused, resumed or stopped. It also has to end when the
        process reaches a boundary, because moves that are due there come first.
        """
        self._request_wake_up(self._schedule.position(self._schedule.now + 1))
        with self._wake:
            return self._clock.wait(self._wake, lambda: self._fresh or self._stopping, duration_ns)

    def _execute(self, batch: Batch, wait: Wait | None = None) -> tuple[int, int]:
        """Move a batch, account for all of its pages, and return the bytes that moved and
        MoveResult.error."""
        node, _ = self._memory.best_node(batch.tier)
        addresses = np.concatenate(
            [self._spaces.maps[move.space].addresses(pages) for move, pages in batch.parts]
        )
        with self._watched.disarmed(lambda: page_ranges(addresses, self._page_bytes)):
            began_ns = time.monotonic_ns()
            try:
                result = self._memory.move_pages(addresses, node, wait)
            finally:
                self.ledger.call(time.monotonic_ns() - began_ns)
        self._tracker.moved(batch)
        first = moved_bytes = 0
        for move, pages in batch.parts:
            status = result.status[first : first + len(pages)]
            first += len(pages)
            self._charge.moved(move.space, pages, status)
            done = self._accounts.moved(move, pages, status, result.error)
            moved_bytes += done.moved_bytes
            if len(done.left):
                self._schedule.left_behind(move, done.left, done.why)
        return moved_bytes, result.error
