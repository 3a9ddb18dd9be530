# SPDX-License-Identifier: Apache-2.0
"""Paged tiers: the daemon's part in a live plan's moves.

The pager in the process carries out the plan's moves by itself (shim/native/schedule.c). The daemon
queues only the moves to the plan's initial tiers, and those of misplaced pages that no planned move
touches. It also accounts for the pages that the pager has moved.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import numpy as np

from sentineld.migrate.ledger import Ledger
from sentineld.migrate.paged import PagedMemory
from sentineld.migrate.ports import PageBackend, ProcessPorts, Result
from sentineld.model.arrays import Table
from sentineld.model.plan import Plan, Space
from sentineld.model.records import PAGE_BYTES
from sentineld.plan.by_layer import PageTiers
from sentineld.plan.expected import settled
from sentineld.plan.stall_trial import Decisions

HEAL_STEPS_MAX = 16
"""Largest number of steps between two searches for misplaced pages. The first searches are 1, 2,
4 ... steps apart."""

_FAST = 0


class PagerMoves:
    """Accounts for one live plan's moves and queues the daemon's own moves; see PlanMover."""

    def __init__(
        self,
        memory: PagedMemory,
        plan: Plan,
        process: ProcessPorts,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        """process.position must not be None."""
        self._memory, self._process = memory, process
        self._initial = plan.initial
        self._settled = settled(plan, page_bytes)
        self._page_bytes = page_bytes
        self._ledger = Ledger()
        self._lock = threading.Lock()  # guards the fields below
        self._counted = memory.counts()
        self._step = self._position() >> 32
        self._heal_at_step, self._heal_steps = 0, 1

    @property
    def ledger(self) -> Ledger:
        """Counts of the moves of the steps that have ended; see _count()."""
        self._count()
        return self._ledger

    @property
    def done_position(self) -> int:
        """The process's current position: no move counts as outstanding. Barriers wait for no
        moves, because accesses and births wait in the pager."""
        return self._position()

    def enter(self) -> None:
        """Queue the moves of persistent tensors to their initial tiers, evictions first."""
        self._queue(self._initial, "initial")

    def start(self, position: int) -> None:
        """Heal misplaced pages from this position on. The pager follows the plan by itself."""
        with self._lock:
            self._heal_at_step, self._heal_steps = position >> 32, 1
        self._process.wake_at_next_step(position)

    def notify(self, position: int) -> None:
        """Account for the moves of the steps before this position; heal misplaced pages if a
        search for them is due."""
        self._process.wake_at_next_step(position)
        self._count()
        step = position >> 32
        with self._lock:
            if step < self._heal_at_step:
                return
            self._heal_at_step = step + self._heal_steps
            self._heal_steps = min(2 * self._heal_steps, HEAL_STEPS_MAX)
        self._queue(self._settled, "heal")

    def pause(self) -> None:
        """Do nothing: at a divergence the shim itself stops the planned moves."""

    def resume(self, position: int) -> None:
        """Do nothing: the pager follows the plan again from the next step on."""

    def watch(self, backend: PageBackend, begin: Callable[[], None]) -> None:
        """Call begin(), which arms pages. The pager may move armed pages, and then they are
        no longer armed."""
        begin()

    def unwatch(self, end: Callable[[], Result]) -> Result:
        """Call end(), which disarms all pages. There is nothing else to undo after watch()."""
        return end()

    @property
    def gaps(self) -> int:
        """0: this object never disarms pages."""
        return 0

    @property
    def residency_known(self) -> bool:
        """True: the residency map is in shared memory, and the pager keeps it up to date."""
        return True

    def stall_decisions(self) -> Decisions:
        """Return zeros: on paged tiers there are no stall trials (plan/stall_trial.py), because
        accesses to pages that are not in memory wait in the pager."""
        return Decisions(0, 0, 0)

    def fast_bytes(self, barriers_hold: bool = True) -> int:
        """Bytes of arena and heap in memory, plus the unmanaged bytes."""
        return self.by_tier()[_FAST] + self._process.unmanaged_bytes()

    def by_tier(self, barriers_hold: bool = True) -> list[int]:
        """Bytes of arena and heap in memory and in the file, according to the residency map."""
        return self._memory.bytes_by_tier()

    def page_tiers(self, barriers_hold: bool = True) -> PageTiers:
        """The tier of each page of arena and heap, according to the residency map."""
        return PageTiers(self._position() & 0xFFFFFFFF, self._memory.page_tiers())

    def stop(self) -> None:
        """Account for the last moves, including those of a step that has not ended. The pager
        follows the plan until the shim gets another plan or is detached."""
        self._count(unfinished=True)

    def _position(self) -> int:
        assert self._process.position is not None
        return self._process.position()

    def _count(self, unfinished: bool = False) -> None:
        """Count the pages that have been moved since the last count. If a step has ended since
        then, these pages are added to the totals of the step that ended last, although some of
        them may have been moved in the current step. If no step has ended, nothing is counted.

        unfinished: count even if no step has ended; the pages are then added to the current step's
            totals.
        """
        with self._lock:
            step = self._position() >> 32
            ended = step > self._step
            if not ended and not unfinished:
                return
            now, before = self._memory.counts(), self._counted
            self._counted, self._step = now, step
            self._ledger.begin_step(step - ended)
            for direction, pages in (
                ("demote", now.evicted_pages - before.evicted_pages),
                ("promote", now.fetched_pages - before.fetched_pages),
            ):
                if pages > 0:
                    self._ledger.moved(direction, "plan", pages * self._page_bytes, late=False)
            self._ledger.late_move(max(now.late_moves - before.late_moves, 0))
            self._ledger.begin_step(step)

    def _queue(self, table: Table, reason: str) -> None:
        """Queue moves of each row's pages that are not on the row's tier, evictions first. Absent
        pages are left out.

        The queueing ends if the queue of evictions stays full, because the process may have stopped
        or ended. A later search for misplaced pages, see notify(), queues the remaining moves of
        those pages that no planned move touches.
        """
        for row in sorted(table, key=lambda row: int(row["tier"]) == _FAST):
            tier = int(row["tier"])
            addresses = self._memory.misplaced(
                Space(row["space"]), int(row["offset"]), int(row["bytes"]), tier
            )
            for first in range(0, len(addresses), self._memory.batch_pages):
                batch = addresses[first : first + self._memory.batch_pages]
                node, room = self._memory.best_node(tier)
                direction = "promote" if tier == _FAST else "demote"
                if not room:
                    self._ledger.skipped(direction, "no-room", len(batch) * self._page_bytes)
                    continue
                status = self._memory.move_pages(batch, node).status
                moved = int(np.count_nonzero(status == node))
                self._ledger.moved(direction, reason, moved * self._page_bytes, late=False)
                unqueued = int(np.count_nonzero(status == -errno.EBUSY))
                if unqueued and tier != _FAST:
                    return
                if unqueued:
                    self._ledger.skipped(direction, "no-room", unqueued * self._page_bytes)
