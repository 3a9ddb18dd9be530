# SPDX-License-Identifier: Apache-2.0
"""The mover: carries out a plan's moves in its own thread as the process passes boundaries."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.migrate.charge import FAST, Charge
from sentineld.migrate.ledger import Ledger
from sentineld.migrate.memory import Memory
from sentineld.migrate.moves import Batch, Pages, Pending
from sentineld.migrate.residency_map import Spaces
from sentineld.migrate.schedule import Schedule
from sentineld.migrate.syscalls import Addresses
from sentineld.model.arrays import Table
from sentineld.model.plan import Plan, Space
from sentineld.model.tiers import Tiers
from sentineld.plan.expected import ExpectedStep, settled
from sentineld.plan.movequeue import move_times

log = logging.getLogger(__name__)

REFRESH_STEPS_MAX = 16
"""Residency is read from the kernel after 1, 2, 4 ... steps, then every so many: what a plan's
first steps placed otherwise shows early. Between, it is followed."""

IDLE_S = 0.25
PACED_SHARE = 0.5
"""Of what a call takes at once: what fewer bytes take is more the call's than the memory's. On
emulated tiers each takes its time, so that there half of the plan's largest move is enough."""
_LAST_BOUNDARY = 0xFFFFFFFF


class PageBackend(Protocol):
    """What arms pages for sampling: moves un-arm them, so it must be asked before and after."""

    def disarm(self, start: int, length_bytes: int) -> object:
        """Make the range's pages ordinary."""

    def arm(self, start: int, length_bytes: int) -> object:
        """Have accesses to the range's pages reported again."""


class Mover:
    """Moves one session's pages. See __init__ for what it needs; start() to stop() is its life.

    moves_done (publish) says that all demotions of positions up to it are
    complete: births wait for these. Promotions go by Schedule's rules, within
    the budget by Charge's account.
    """

    def __init__(
        self,
        pid: int,
        tiers: Tiers,
        plan: Plan,
        step: ExpectedStep,
        *,
        memory: Memory,
        spaces: Mapping[Space, tuple[int, int]],
        publish: Callable[[int], None],
        overhead: Callable[[], int] = lambda: 0,
        useful_until: npt.NDArray[np.int64] | None = None,
        ahead: npt.NDArray[np.int64] | None = None,
        position: Callable[[], int] | None = None,
        ended: Callable[[str], None] = lambda _: None,
        page_bytes: int = 4096,
    ) -> None:
        """memory: the process's pages. spaces: (start address, bytes) of arena and heap. overhead:
        bytes charged beside the two spaces; the plan's budget is what they leave over now.
        position: reads the shim's position between batches. ended: called once from the mover's
        thread when it can't go on. publish, overhead and position must not block."""
        self.pid = pid
        self.ledger = Ledger()
        self._spaces = Spaces(tiers, spaces, page_bytes)
        budget_bytes = plan.budget_bytes + overhead()
        self._charge = Charge(self._spaces, step, plan.layout.waits, budget_bytes, overhead)
        self._memory = memory
        self._schedule = Schedule(
            plan.moves,
            move_times(plan.moves, step.boundary_count, useful_until, ahead),
            step.boundary_count,
            self._pages_of,
            self._give_up,
            page_bytes,
            stalls_for_promotions=plan.stalls_for_promotions,
        )
        at_once = memory.batch_pages * page_bytes
        largest = int(plan.moves["bytes"].max()) if len(plan.moves) else at_once
        self._telling_bytes = PACED_SHARE * (min(at_once, largest) if memory.exact else at_once)
        self._initial = plan.initial
        self._settled = settled(plan, page_bytes)
        self._refresh_at_step = 0
        self._refresh_steps = 1
        self._published = 0
        self._page_bytes = page_bytes
        self._publish, self._read_position, self._ended = publish, position, ended
        self._backend: PageBackend | None = None
        self._moving = (
            threading.Lock()
        )  # held during a call, so that watching begins and ends between two
        self._wake = threading.Condition()
        self._position = 0  # below: guarded by _wake
        self._fresh = False
        self._paused = False
        self._restart = False
        self._refresh = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """Bring persistent tensors to their first tiers, now, in the caller's thread.

        What finds no room is left to start(). Raises ProcessLookupError.
        """
        self._spaces.maps[Space.HEAP].refresh(self._memory)
        for move in sorted(self._moves_of(self._initial, "initial"), key=_is_promotion):
            while len(pages := np.setdiff1d(self._pages_of(move), move.stuck)):
                _, free = self._memory.best_node(move.tier)
                limit = min(self._memory.batch_pages, free // self._page_bytes)
                if limit <= 0:
                    self._give_up(move, "no-room")
                    break
                self._execute(Batch(move.tier, ((move, pages[:limit]),)))
            else:
                if len(move.stuck):
                    self._give_up(move, move.why)

    def begin(self, position: int) -> None:
        """Have work() follow the process from this position on."""
        with self._wake:
            self._position, self._restart, self._fresh = position, True, True

    def start(self, position: int) -> None:
        """Follow the process from this position on, in a thread of its own."""
        self.begin(position)
        self._thread = threading.Thread(target=self._run, name=f"mover-{self.pid}", daemon=True)
        self._thread.start()

    def notify(self, position: int) -> None:
        """The process has reached a position (step << 32 | boundary)."""
        with self._wake:
            if position > self._position:
                self._position, self._fresh = position, True
                self._wake.notify()

    def pause(self) -> None:
        """The process left the plan: drop what is due; nothing that it does waits for us."""
        with self._wake:
            self._paused, self._fresh = True, True
            self._wake.notify()

    def resume(self, position: int) -> None:
        """The process is back in the plan since this position."""
        with self._wake:
            self._paused, self._restart, self._fresh = False, True, True
            self._position = max(self._position, position)
            self._wake.notify()

    def refresh(self) -> None:
        """Read residency from the kernel at the next step's begin."""
        with self._wake:
            self._refresh = True

    def watch(self, backend: PageBackend, begin: Callable[[], None]) -> None:
        """Have begin() arm pages while none moves; from then on disarm and arm around moves."""
        with self._moving:
            begin()
            self._backend = backend

    def unwatch(self) -> None:
        """No longer disarm and arm around moves; waits for a call under way."""
        with self._moving:
            self._backend = None

    @property
    def done_position(self) -> int:
        """What was published last."""
        return self._published

    def fast_bytes(self, barriers_hold: bool = True) -> int:
        """Fast bytes charged now, by the mover's own account. barriers_hold: the process waits at
        barriers for what they wait for."""
        return self._charge.charged_bytes(barriers_hold)

    def by_tier(self, barriers_hold: bool = True) -> list[int]:
        """Resident bytes of arena and heap by tier, by the mover's own account."""
        return self._charge.resident_bytes(barriers_hold)

    def stop(self) -> None:
        """End the thread; a call under way is finished."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                self.work()
        except ProcessLookupError:
            self._ended("the process is gone")
        except (SentinelError, OSError) as error:
            log.warning("mover of %d ends: %s", self.pid, error)
            self._ended(str(error))

    def _wait(self) -> bool:
        with self._wake:
            if not (self._fresh or self._stopping):
                self._wake.wait(IDLE_S)
            self._fresh = False
            return not self._stopping

    def work(self) -> None:
        """Follow the process and move until there is nothing to do or no room for it."""
        began_ns = time.monotonic_ns()
        while self._follow():
            batch = self._schedule.next_batch(
                self._charge.room_bytes,
                lambda tier: self._memory.best_node(tier)[1],
                self._memory.batch_pages,
            )
            self._announce(self._schedule.done())
            if batch is None:
                return
            moved_bytes = self._execute(batch)
            self._schedule.moved(batch)
            self._announce(self._schedule.done())
            # What lies between two batches counts, too: that is how fast pages come to move.
            now_ns = time.monotonic_ns()
            if moved_bytes >= self._telling_bytes:
                self.ledger.paced(moved_bytes, now_ns - began_ns)
            began_ns = now_ns

    def _follow(self) -> bool:
        """Catch up with the process; False if there is nothing to work at."""
        latest = self._read_position() if self._read_position is not None else 0
        with self._wake:
            position = self._position = max(self._position, latest)
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
        if restart or target - schedule.now > schedule.boundary_count:
            schedule.queue.clear("superseded")
            schedule.now = target
            self._refresh_steps = 1
            self.ledger.begin_step(target // schedule.boundary_count)
            self._read_residency()
            schedule.rejoin(target, self._charge.drops_of)
        while schedule.now < target:
            schedule.pass_boundary(self._charge.end())
            step, boundary = divmod(schedule.now, schedule.boundary_count)
            self._charge.begin(schedule.now)
            if boundary == 0:
                self.ledger.begin_step(step)
                if self._refresh or step >= self._refresh_at_step:
                    self._read_residency()
        return True

    def _read_residency(self) -> None:
        """Take over the kernel's truth, and queue what no planned move will put right."""
        self._refresh = False
        step = self._schedule.now // self._schedule.boundary_count
        self._refresh_at_step = step + self._refresh_steps
        self._refresh_steps = min(2 * self._refresh_steps, REFRESH_STEPS_MAX)
        changed = self._charge.refresh(self._memory, self._schedule.now)
        log.debug("residency of %d read: %d pages were elsewhere", self.pid, changed)
        for move in self._moves_of(self._settled, "heal"):
            if len(self._pages_of(move)):
                self._schedule.queue.add(move)

    def _moves_of(self, table: Table, reason: str) -> list[Pending]:
        return [self._schedule.move_now(row, reason) for row in table]

    def _announce(self, position: int) -> None:
        """Publish moves_done; it never goes back."""
        self._published = max(self._published, position)
        self._charge.done = self._schedule.absolute(self._published)
        self._publish(self._published)

    def _pages_of(self, move: Pending) -> Pages:
        return self._spaces.pages_to_move(Space(move.space), move.offset, move.bytes, move.tier)

    def _execute(self, batch: Batch) -> int:
        """Move a batch and account for every page of it; the bytes that moved."""
        node, _ = self._memory.best_node(batch.tier)
        addresses = np.concatenate(
            [self._spaces.maps[Space(move.space)].addresses(pages) for move, pages in batch.parts]
        )
        with self._moving:
            armed = self._backend
            ranges = _ranges(addresses, self._page_bytes) if armed is not None else []
            if armed is not None:
                for start, size in ranges:
                    armed.disarm(start, size)
            began_ns = time.monotonic_ns()
            try:
                result = self._memory.move_pages(addresses, node)
            finally:
                self.ledger.call(time.monotonic_ns() - began_ns)
                if armed is not None:
                    for start, size in ranges:
                        armed.arm(start, size)
        first = moved_bytes = 0
        for move, pages in batch.parts:
            status = result.status[first : first + len(pages)]
            first += len(pages)
            self._charge.moved(Space(move.space), pages, status)
            moved_bytes += self._account(move, pages, status, result.error)
        return moved_bytes

    def _account(
        self, move: Pending, pages: Pages, status: npt.NDArray[np.int32], error: int
    ) -> int:
        """Bytes that are there now."""
        direction = _direction(move)
        there = np.isin(status, self._spaces.tiers.tiers[move.tier].nodes)
        absent = (status == -errno.ENOENT) | (status == -errno.EFAULT)
        moved_bytes = int(np.count_nonzero(there)) * self._page_bytes
        if moved_bytes:
            if move.late and not move.moved_bytes:
                self.ledger.late_move()
            move.moved_bytes += moved_bytes
            self.ledger.moved(direction, move.reason, moved_bytes, move.late)
        if absent.any():
            absent_bytes = int(np.count_nonzero(absent)) * self._page_bytes
            self.ledger.skipped(direction, "absent", absent_bytes)
        left = ~(there | absent)
        if left.any():
            shared = bool((status[left] == -errno.EACCES).all())
            why = "no-memory" if error == errno.ENOMEM else "shared" if shared else "busy"
            self._schedule.left_behind(move, pages[left], why)
        return moved_bytes

    def _give_up(self, move: Pending, why: str) -> None:
        """A move ends with pages that are not where it wanted them, or needs no moving."""
        direction = _direction(move)
        if why in ("already-there", "absent"):
            self.ledger.skipped(direction, why, move.bytes)
            return
        left_bytes = len(self._pages_of(move)) * self._page_bytes
        if why in ("busy", "shared", "no-memory"):
            self.ledger.failed(direction, why, left_bytes)
            return
        self.ledger.skipped(direction, why, left_bytes)
        if why == "late":
            self.ledger.late_move()


def _is_promotion(move: Pending) -> bool:
    return move.tier == FAST


def _direction(move: Pending) -> str:
    return "promote" if _is_promotion(move) else "demote"


def _ranges(addresses: Addresses, page_bytes: int) -> list[tuple[int, int]]:
    """The pages as (start, bytes) ranges, neighbours joined."""
    ordered = np.sort(addresses)
    breaks = np.flatnonzero(np.diff(ordered) != page_bytes) + 1
    return [
        (int(group[0]), int(group[-1]) - int(group[0]) + page_bytes)
        for group in np.split(ordered, breaks)
    ]
