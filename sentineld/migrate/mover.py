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
from sentineld.migrate.accounts import Accounts, is_promotion
from sentineld.migrate.batches import Schedule
from sentineld.migrate.charge import Charge
from sentineld.migrate.ledger import Ledger
from sentineld.migrate.pace import Pace
from sentineld.migrate.pending import Batch, Pages, Pending, no_pages
from sentineld.migrate.ports import PageBackend, PlannedStep, ProcessPorts, Result
from sentineld.migrate.process_memory import Wait
from sentineld.migrate.reborn import back_to_their_region, dropped_pages
from sentineld.migrate.residency_map import PageMaps
from sentineld.migrate.syscalls import page_ranges
from sentineld.migrate.wake_ups import WakeUps
from sentineld.migrate.watched import Watched
from sentineld.model.arrays import Table
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers
from sentineld.plan.by_layer import PageTiers
from sentineld.plan.expected import settled
from sentineld.plan.move_queue import move_times
from sentineld.plan.stall_trial import Decisions, StallTrial, late_moves, stall_boundaries

log = logging.getLogger(__name__)

REFRESH_STEPS_MAX = 16
"""Residency is read from the kernel after 1, 2, 4 ... steps, at most this many steps apart. The
first reads follow each other closely, to find pages that are misplaced in a plan's first steps.
While pages are watched, reads are postponed: a read disarms all pages, so accesses would be missed.
Between two reads, the mover's map is updated by the moves that are made and by the expected births
and drops."""

IDLE_S = 0.25
"""Longest time without a look at the process's position."""
MAP_AGE_NS = 20_000_000
"""Age of the map from which on any boundary wakes the mover."""

FOLLOWING = threading.Lock()
"""Held by the one mover that passes boundaries at present. Movers can't do this in parallel: it
needs Python's GIL. Each thread that waits for the GIL wakes up every SWITCH_S (daemon.py), so
dozens of such threads would take half a CPU. Threads that wait for a lock sleep."""
FOLLOWING_NS = 2_000_000
"""After this time, a mover releases FOLLOWING, and takes it again after YIELD_S, so that another
mover can take it in between."""
YIELD_S = 0.0001

_LAST_BOUNDARY = 0xFFFFFFFF


class Mover:
    """Moves one session's pages: first in enter(), then from start() to stop().

    The mover publishes the position (moves_done) up to which all due demotions are complete,
    because births wait for demotions. If the process stalls at a promotion's deadline
    (plan/stall_trial.py), it waits until boundary `deadline - 1` is published. The mover publishes
    that boundary only when the promotion has left the queue or fast memory has no room for
    promotions.
    plan/move_queue.py decides which move runs next, and Charge computes how much may be promoted
    within the budget.
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
        plan, step, memory = planned.plan, planned.step, process.memory
        self.pid = process.pid
        self.ledger = Ledger()
        self._ranges = process.spaces
        self._spaces = PageMaps(tiers, process.spaces, page_bytes)
        self._charge = Charge(
            self._spaces, step, plan.layout.waits, budget_bytes, process.unmanaged_bytes
        )
        self._memory = memory
        self._accounts = Accounts(self.ledger, self._spaces, self._pages_of)
        stalls = stall_boundaries(plan).tolist()
        self._trial = StallTrial(stalls, step.boundary_count)
        times = move_times(
            plan.moves, step.boundary_count, planned.useful_until, planned.ahead, late_moves(plan)
        )
        self._wake_ups = WakeUps(times, plan.layout.waits, stalls)
        self._schedule = Schedule(
            plan.moves,
            times,
            step.boundary_count,
            self._pages_of,
            self._accounts.given_up,
            page_bytes,
            stalls=self._trial.stalls,
        )
        self._pace = Pace(self.ledger, memory, plan.moves, page_bytes)
        self._initial = plan.initial
        self._regions = plan.layout.regions
        self._last: Batch | None = None  # the batch carried out since the last _follow()
        # Pages of the arena that were moved in the current stretch and that the plan drops in this
        # stretch. They may have been dropped and born again before the move; see _recheck().
        self._suspects = no_pages()
        self._settled = settled(plan, page_bytes)
        self._refresh_at_step = 0
        self._refresh_steps = 1
        self._published = 0
        self._page_bytes = page_bytes
        self._publish, self._read_position = process.publish, process.position
        self._ended, self._clock = process.ended, process.clock
        self._watched = Watched()
        self._wake = threading.Condition()
        self._position = 0  # guarded by _wake, like the fields below
        self._wake_at = 0  # notify() wakes the mover from this boundary on; see _set_wake_up()
        self._followed_ns = 0  # time of the last _follow()
        self._fresh = False
        self._fresh_ns = 0
        self._paused = False
        self._restart = False
        self._refresh = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Move persistent tensors to their initial tiers, in the caller's thread.

        If a tier has no room, or the budget has none for a promotion, the thread that start()
        creates moves the remaining pages later.
        Raises ProcessLookupError if the process is gone, SentinelError if the kernel refuses.
        """
        with self._watched.disarmed(lambda: [self._ranges[Space.HEAP]]):
            self._spaces.maps[Space.HEAP].refresh(self._memory)
        for move in sorted(self._moves_of(self._initial, "initial"), key=is_promotion):
            while len(pages := np.setdiff1d(self._pages_of(move), move.stuck)):
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
                old = self._clock.now_ns() - self._followed_ns >= MAP_AGE_NS
                if old or self._schedule.absolute(position) >= self._wake_at:
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
        with self._wake:
            self._refresh = True

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
        return self._trial.decisions

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
        """If the mover has nothing to do for the moment, let notify() wake it only at the next
        boundary at which it has something to do, or when the map is MAP_AGE_NS old."""
        queue = self._schedule.queue
        busy = queue.demotions or queue.promotions or len(self._suspects) or self._trial.undecided
        if not busy:
            with self._wake:
                self._wake_at = self._wake_ups.after(self._schedule.now)

    def _follow(self) -> bool:
        """Catch up with the process; returns False if the mover is paused or stopping."""
        latest = self._read_position() if self._read_position is not None else 0
        with self._wake:
            position = self._position = max(self._position, latest)
            self._fresh, self._wake_at = False, 0
            self._followed_ns = self._clock.now_ns()
            paused, restart, stopping = self._paused, self._restart, self._stopping
            if not paused:
                self._restart = False
        if stopping:
            return False
        if paused:
            self._schedule.queue.clear("paused")
            self._announce(position | _LAST_BOUNDARY)
            return False
        schedule = self._schedule
        target = schedule.absolute(position)
        dropped: list[Table] = []
        if restart:
            self._rejoin(target)
        elif target - schedule.now > schedule.boundary_count:
            self._catch_up(target, dropped)
        while schedule.now < target:
            if self._pass_boundaries(target, dropped):
                self._read_residency()
        self._recheck(dropped)
        return True

    def _rejoin(self, target: int) -> None:
        """Follow the plan from boundary `target` on, after the plan was not followed."""
        self._schedule.queue.clear("superseded")
        self._trial.interrupt()
        self._schedule.now = target
        self._refresh_steps = 1
        self.ledger.begin_step(target // self._schedule.boundary_count)
        self._read_residency()
        self._suspects = no_pages()
        self._schedule.rejoin(target, self._charge.drops_of)

    def _catch_up(self, target: int, dropped: list[Table]) -> None:
        """Skip to boundary `target`, which the process has reached while the mover was busy for
        more than a step.

        All steps have the same births and drops, so one whole step of them updates the map of all
        pages that are born. Residency is not read from the kernel for this: during the read, an
        overloaded mover would fall behind again, so it would read at each call.

        dropped: gets the drops of each stretch that ends.
        """
        schedule = self._schedule
        count = schedule.boundary_count
        schedule.cancel_planned(target + count)
        self._trial.interrupt()
        schedule.now += ((target - schedule.now) // count - 1) * count
        while schedule.now < target:
            self._pass_boundaries(target, dropped, by_plan=False)
        self.ledger.begin_step(target // count)
        if self._is_read_due():
            self._read_residency()
        schedule.rejoin(target, self._charge.drops_of)

    def _pass_boundaries(self, target: int, dropped: list[Table], by_plan: bool = True) -> bool:
        """Follow the process up to boundary `target`, or until the residency has to be read.
        Returns whether it has to be read. May return early: see FOLLOWING_NS.

        dropped: gets the drops of each stretch that ends.
        by_plan: whether to queue moves at their boundaries. If not, only the map is updated.
        """
        schedule, now_ns = self._schedule, self._clock.now_ns()
        with FOLLOWING:
            until_ns = time.monotonic_ns() + FOLLOWING_NS
            while schedule.now < target and time.monotonic_ns() < until_ns:
                dropped.append(self._charge.end())
                if by_plan:
                    self._trial.passed(schedule.now + 1, now_ns)
                    schedule.pass_boundary(dropped[-1])
                else:
                    schedule.now += 1
                self._charge.begin(schedule.now)
                step, boundary = divmod(schedule.now, schedule.boundary_count)
                if by_plan and boundary == 0:
                    self.ledger.begin_step(step)
                    if self._is_read_due():
                        return True
        if schedule.now < target:
            time.sleep(YIELD_S)
        return False

    def _is_read_due(self) -> bool:
        """Whether to read the residency in the step that the process has reached."""
        step = self._schedule.now // self._schedule.boundary_count
        due = self._refresh or step >= self._refresh_at_step
        return due and not self._watched.watched

    def _recheck(self, dropped: list[Table]) -> None:
        """Correct the map for each page of the arena that the mover moved in a stretch in which the
        process also dropped the page.

        Such a page may have been born again before it was moved. The page is then on the tier to
        which it was moved, but in the map it is on the tier of its birth, because the map gets a
        stretch's drops, and the births after them, only when the stretch ends. If the page's region
        is on a slow tier but the page is not, the page is demoted to the region's tier, unless a
        promotion of the page is queued.

        dropped: DROP_DTYPE of plan/expected.py, the ranges that were dropped in each stretch that
            has ended since the last call.
        """
        parts = self._last.parts if self._last is not None else ()
        arena = [pages for move, pages in parts if move.space == Space.ARENA]
        if not arena and not len(self._suspects):
            self._last = None
            return
        moved, self._last = np.concatenate([no_pages(), *arena]), None
        pages = no_pages()
        if dropped:
            found = dropped_pages(moved, np.concatenate(dropped), self._page_bytes)
            pages, self._suspects = np.union1d(found, self._suspects), no_pages()
        # The last batch may have ended in the present stretch, whose drops are not in the map yet.
        # So pages that this stretch drops are checked when it has ended.
        stretch = self._schedule.now % self._schedule.boundary_count
        found = dropped_pages(moved, self._charge.drops_of(stretch), self._page_bytes)
        self._suspects = np.union1d(self._suspects, found)
        if not len(pages):
            return
        addresses = self._spaces.maps[Space.ARENA].addresses(pages)
        with self._watched.disarmed(lambda: page_ranges(addresses, self._page_bytes)):
            self._charge.recheck(self._memory, pages, self._schedule.now)
        queue = self._schedule.queue
        back = back_to_their_region(pages, self._regions, self._page_bytes)
        for move in self._moves_of(back, "heal"):
            if len(self._pages_of(move)) and not any(map(move.overlaps, queue.promotions)):
                queue.add(move)

    def _read_residency(self) -> None:
        """Refresh the map from the kernel; queue moves of misplaced pages that no planned move
        touches."""
        self._refresh = False
        step = self._schedule.now // self._schedule.boundary_count
        self._refresh_at_step = step + self._refresh_steps
        self._refresh_steps = min(2 * self._refresh_steps, REFRESH_STEPS_MAX)
        with self._watched.disarmed(self._ranges.values, gap=True):
            changed = self._charge.refresh(self._memory, self._schedule.now)
        log.debug("residency of process %d: %d pages differed from the map", self.pid, changed)
        for move in self._moves_of(self._settled[self._spaces.misplaced(self._settled)], "heal"):
            self._schedule.queue.add(move)

    def _moves_of(self, table: Table, reason: str) -> list[Pending]:
        return [self._schedule.move_now(row, reason) for row in table]

    def _announce(self, position: int) -> None:
        """Publish moves_done, which never decreases."""
        self._published = max(self._published, position)
        self._charge.done = self._schedule.absolute(self._published)
        self._publish(self._published)

    def _pages_of(self, move: Pending) -> Pages:
        return self._spaces.pages_to_move(move.space, move.offset, move.bytes, move.tier)

    def _wait_in_move(self, duration_ns: int) -> bool:
        """Wait during a move; returns True if the move has to end (see Wait).

        A move has to end when the mover is paused, resumed or stopped. It also has to end when the
        process reaches a boundary, because moves that are due there come first.
        """
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
        self._last = batch
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
