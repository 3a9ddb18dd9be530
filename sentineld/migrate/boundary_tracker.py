# SPDX-License-Identifier: Apache-2.0
"""Tracks a process through the steps of its plan: what is resident, and what is to be moved."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

from sentineld.migrate.accounts import Accounts
from sentineld.migrate.batches import Schedule
from sentineld.migrate.charge import Charge
from sentineld.migrate.ledger import Ledger
from sentineld.migrate.pending import Batch, Pages, Pending, no_pages
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.reborn import back_to_their_region, dropped_pages
from sentineld.migrate.residency_map import PageMaps
from sentineld.migrate.step_boundaries import StepBoundaries, wake_ups
from sentineld.migrate.syscalls import page_ranges
from sentineld.migrate.watched import Watched
from sentineld.model.arrays import Table
from sentineld.model.plan import Space
from sentineld.model.tiers import Tiers
from sentineld.plan.expected import settled
from sentineld.plan.move_queue import move_times
from sentineld.plan.stall_trial import StallTrial, late_moves, stall_boundaries

log = logging.getLogger(__name__)

REFRESH_STEPS_MAX = 16
"""Residency is read from the kernel after 1, 2, 4 ... steps, at most this many steps apart. The
first reads follow each other closely, to find pages that are misplaced in a plan's first steps.
While pages are watched, reads are postponed: a read disarms all pages, so accesses would be missed.
Between two reads, the map is updated by the moves that are made and by the expected births and
drops."""

PASSING = threading.Lock()
"""Held by a mover's thread while its tracker passes boundaries. The threads of several movers can't
do this in parallel, because it needs Python's GIL. A thread that waits for the GIL wakes up every
SWITCH_S (daemon.py), so dozens of such threads would take half a CPU. A thread that waits for a
lock sleeps."""
PASSING_NS = 2_000_000
"""After this time, a mover's thread releases PASSING. It takes PASSING again after YIELD_S, so that
another mover's thread can take it in between."""
YIELD_S = 0.0001


class BoundaryTracker:
    """Keeps a session's residency map and its queue of moves up to date while the process passes
    boundaries.

    The map is read from the kernel from time to time. After each read, "heal" moves are queued for
    the pages that are not on their planned tier, except those that a planned move touches.
    While the mover's thread runs, only this thread may call the methods, except refresh(): any
    thread may call it. Any thread may read `trial.decisions`, and use `ledger`. For the threads
    that may use `charge` and `watched`, see their classes.
    """

    def __init__(
        self,
        tiers: Tiers,
        planned: PlannedStep,
        process: ProcessPorts,
        budget_bytes: int,
        page_bytes: int,
    ) -> None:
        """budget_bytes: see Mover."""
        plan, step = planned.plan, planned.step
        self.ledger = Ledger()
        self.spaces = PageMaps(tiers, process.spaces, page_bytes)
        self.charge = Charge(
            self.spaces, step, plan.layout.waits, budget_bytes, process.unmanaged_bytes
        )
        self.accounts = Accounts(self.ledger, self.spaces, self.pages_of)
        self.watched = Watched()
        self._ranges = process.spaces
        self._memory, self._clock, self._pid = process.memory, process.clock, process.pid
        stalls = stall_boundaries(plan).tolist()
        self.trial = StallTrial(stalls, step.boundary_count)
        times = move_times(
            plan.moves, step.boundary_count, planned.useful_until, planned.ahead, late_moves(plan)
        )
        self._wake_ups = wake_ups(times, plan.layout.waits, stalls)
        self._changes = StepBoundaries(
            self.charge.changing() | {one.begin for one in times}, step.boundary_count
        )
        self.schedule = Schedule(
            plan.moves,
            times,
            step.boundary_count,
            self.pages_of,
            self.accounts.given_up,
            page_bytes,
            stalls=self.trial.stalls,
        )
        self._regions = plan.layout.regions
        self._last: Batch | None = None  # the batch carried out since the last _recheck()
        # Pages of the arena that were moved in the current stretch and that the plan drops in this
        # stretch. They may have been dropped and born again before the move; see _recheck().
        self._suspects = no_pages()
        self._settled = settled(plan, page_bytes)
        self._refresh = False
        self._refresh_at_step = 0
        self._refresh_steps = 1

    def pages_of(self, move: Pending) -> Pages:
        """A move's resident pages that are not on the move's target tier."""
        return self.spaces.pages_to_move(move.space, move.offset, move.bytes, move.tier)

    def moves_of(self, table: Table, reason: str) -> list[Pending]:
        """Moves for MOVE_DTYPE rows that are due now."""
        return [self.schedule.move_now(row, reason) for row in table]

    def refresh(self) -> None:
        """Read residency at the next beginning of a step at which no pages are watched. May be
        called from any thread."""
        self._refresh = True

    def follow(self, position: int, restart: bool) -> None:
        """Pass all boundaries up to a position (step << 32 | boundary).

        restart: whether the plan was not followed before. Raises ProcessLookupError if the process
        is gone.
        """
        schedule = self.schedule
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

    def moved(self, batch: Batch) -> None:
        """Report that a batch was carried out."""
        self._last = batch

    def next_boundary(self) -> int | None:
        """The next boundary, counted since the first step, at which the mover has something to do.
        None: at every boundary."""
        queue = self.schedule.queue
        if queue.demotions or queue.promotions or len(self._suspects) or self.trial.undecided:
            return None
        return self._wake_ups.after(self.schedule.now)

    def _rejoin(self, target: int) -> None:
        """Follow the plan from boundary `target` on, after the plan was not followed."""
        self.schedule.queue.clear("superseded")
        self.trial.interrupt()
        self.schedule.now = target
        self._refresh_steps = 1
        self.ledger.begin_step(target // self.schedule.boundary_count)
        self._read_residency()
        self._suspects = no_pages()
        self.schedule.rejoin(target, self.charge.drops_of)

    def _catch_up(self, target: int, dropped: list[Table]) -> None:
        """Skip to boundary `target`, which the process has reached while the mover was busy for
        more than a step.

        All steps have the same births and drops, so one whole step of them updates the map of all
        pages that are born. Residency is not read from the kernel for this: during the read, an
        overloaded mover would fall behind again, so it would read at each call.

        dropped: gets the drops of each stretch that ends.
        """
        schedule = self.schedule
        count = schedule.boundary_count
        schedule.cancel_planned(target + count)
        self.trial.interrupt()
        schedule.now += ((target - schedule.now) // count - 1) * count
        while schedule.now < target:
            self._pass_boundaries(target, dropped, by_plan=False)
        self.ledger.begin_step(target // count)
        if self._is_read_due():
            self._read_residency()
        schedule.rejoin(target, self.charge.drops_of)

    def _pass_boundaries(self, target: int, dropped: list[Table], by_plan: bool = True) -> bool:
        """Follow the process up to boundary `target`, or until the residency has to be read.
        Returns whether it has to be read. May return early: see PASSING_NS.

        dropped: gets the drops of each stretch that ends.
        by_plan: whether to queue moves at their boundaries. If not, only the map is updated.
        """
        schedule, now_ns = self.schedule, self._clock.now_ns()
        with PASSING:
            until_ns = time.monotonic_ns() + PASSING_NS
            while schedule.now < target and time.monotonic_ns() < until_ns:
                if self._pass_quiet_boundaries(target):
                    continue
                drops = self.charge.end()
                if len(drops):
                    dropped.append(drops)
                if by_plan:
                    self.trial.passed(schedule.now + 1, now_ns)
                    schedule.pass_boundary(drops)
                else:
                    schedule.now += 1
                self.charge.begin(schedule.now)
                step, boundary = divmod(schedule.now, schedule.boundary_count)
                if by_plan and boundary == 0:
                    self.ledger.begin_step(step)
                    if self._is_read_due():
                        return True
        if schedule.now < target:
            time.sleep(YIELD_S)
        return False

    def _pass_quiet_boundaries(self, target: int) -> bool:
        """Pass boundaries up to `target`, but stop before the first one at which the map or the
        queue changes. Returns whether any boundary was passed."""
        if self.trial.undecided or not self.charge.settled:
            return False
        last = min(self._changes.after(self.schedule.now) - 1, target)
        if last == self.schedule.now:
            return False
        self.schedule.now = last
        self.charge.skip(last)
        return True

    def _is_read_due(self) -> bool:
        """Whether to read the residency in the step that the process has reached."""
        step = self.schedule.now // self.schedule.boundary_count
        due = self._refresh or step >= self._refresh_at_step
        return due and not self.watched.watched

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
            found = dropped_pages(moved, np.concatenate(dropped), self.spaces.page_bytes)
            pages, self._suspects = np.union1d(found, self._suspects), no_pages()
        # The last batch may have ended in the present stretch, whose drops are not in the map yet.
        # So pages that this stretch drops are checked when it has ended.
        stretch = self.schedule.now % self.schedule.boundary_count
        found = dropped_pages(moved, self.charge.drops_of(stretch), self.spaces.page_bytes)
        self._suspects = np.union1d(self._suspects, found)
        if not len(pages):
            return
        addresses = self.spaces.maps[Space.ARENA].addresses(pages)
        with self.watched.disarmed(lambda: page_ranges(addresses, self.spaces.page_bytes)):
            self.charge.recheck(self._memory, pages, self.schedule.now)
        queue = self.schedule.queue
        back = back_to_their_region(pages, self._regions, self.spaces.page_bytes)
        for move in self.moves_of(back, "heal"):
            if len(self.pages_of(move)) and not any(map(move.overlaps, queue.promotions)):
                queue.add(move)

    def _read_residency(self) -> None:
        """Refresh the map from the kernel; queue moves of misplaced pages that no planned move
        touches."""
        self._refresh = False
        step = self.schedule.now // self.schedule.boundary_count
        self._refresh_at_step = step + self._refresh_steps
        self._refresh_steps = min(2 * self._refresh_steps, REFRESH_STEPS_MAX)
        with self.watched.disarmed(self._ranges.values, gap=True):
            changed = self.charge.refresh(self._memory, self.schedule.now)
        log.debug("residency of process %d: %d pages differed from the map", self._pid, changed)
        for move in self.moves_of(self._settled[self.spaces.misplaced(self._settled)], "heal"):
            self.schedule.queue.add(move)
