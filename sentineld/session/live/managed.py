# SPDX-License-Identifier: Apache-2.0
"""A live plan: boundaries wake the mover, and diverged steps pause it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping

from sentineld.migrate.mover import Mover
from sentineld.migrate.paged import PagedMemory
from sentineld.migrate.pager_moves import PagerMoves
from sentineld.migrate.ports import PlanMover, PlannedStep, ProcessPorts
from sentineld.migrate.process_memory import Memory
from sentineld.model import protocol
from sentineld.model.plan import Space
from sentineld.model.tiers import Tiers
from sentineld.observe.control_segment import ShimWords
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.by_layer import PageTiers
from sentineld.plan.correct import Progress
from sentineld.plan.stall_trial import Decisions
from sentineld.session.intake.claims import arena_range, heap_range
from sentineld.session.live.barriers import Barriers
from sentineld.session.live.divergence import Divergence, Patience, Verdict
from sentineld.session.live.map_memory import MEMORY
from sentineld.session.live.shapes import Planned

log = logging.getLogger(__name__)

IDLE_WAKE_UP_S = 0.01
"""Pause after a wake-up without a new boundary. The process owns the eventfd and can keep it
readable. Without the pause, the thread would then occupy a CPU core."""


class Managed:
    """The plan, its mover and the boundary thread. The boundary thread wakes when the process has
    reached the position for which the mover has asked, and reports the position to the mover."""

    def __init__(
        self,
        link: ShimLink,
        planned: Planned,
        tiers: Tiers,
        memory: Callable[[ShimLink, Mapping[Space, tuple[int, int]], Tiers], Memory],
        on_exit: Callable[[str], None],
        patience: Patience,
    ) -> None:
        """The plan's layout must be live: the arena's address is read from the control words.

        memory: returns the interface to the process's pages; see Substrate.memory().
        on_exit: called from the mover's thread if the mover can't continue, with the reason.
        patience: decides how long the session keeps a plan that does not fit.
        Raises SentinelError, or OSError if no descriptor is free. The error's code is "busy" if the
        page maps of the user's processes, or of all processes, would need too much memory.
        """
        self.plan = plan = planned.plan
        self.profile = planned.profile
        self._link = link
        words = link.segment.words()
        self.spaces = {
            Space.ARENA: arena_range(words, plan.layout.arena_bytes),
            Space.HEAP: heap_range(link.segment, words),
        }
        self._divergence = Divergence(words, patience)
        self._barriers = Barriers(link.segment)
        self._paused = False
        self._stop = threading.Event()
        with contextlib.ExitStack() as failed:
            # The daemon never writes to the process's eventfd: the process can make such a write
            # block.
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            failed.callback(os.close, self._wake_fd)
            self._maps = failed.enter_context(contextlib.ExitStack())
            self._maps.enter_context(MEMORY.held(link.uid, link.pid, self.spaces.values()))
            self._memory = memory(link, self.spaces, tiers)
            failed.callback(self._memory.close)
            ports = ProcessPorts(
                pid=link.pid,
                memory=self._memory,
                spaces=self.spaces,
                publish=link.segment.set_moves_done,
                position=link.segment.position,
                wake_at=self._wake_at,
                unmanaged_bytes=link.segment.unmanaged_bytes,
                ended=on_exit,
            )
            self.mover = _mover(tiers, planned, ports)
            failed.pop_all()
        self._pump = threading.Thread(
            target=self._carry, name=f"boundaries-{link.pid}", daemon=True
        )

    def enter(self) -> None:
        """Move the persistent tensors to the plan's initial tiers. Blocks until they are moved; on
        paged tiers, only until the moves are queued."""
        self.mover.enter()

    def start(self) -> None:
        """Follow the plan's schedule from the next boundary on."""
        self.mover.start(self._link.segment.position())
        self._pump.start()

    def follow(self, words: ShimWords) -> Verdict:
        """Pause moves while a step diverges; returns the verdict on whether the plan still fits."""
        diverged = words.mode != protocol.Mode.REPLAY
        if diverged and not self._paused:
            self.mover.pause()
        elif self._paused and not diverged:
            self.mover.resume(words.position)
        self._paused = diverged
        return self._divergence.look(words)

    def may_leave(self) -> bool:
        """Whether the plan has been live long enough to be left for another one."""
        return self._divergence.may_leave(self._link.segment.words())

    def followed_steps(self) -> int:
        """Number of steps that followed the plan since it became live."""
        return self._divergence.followed_steps(self._link.segment.words())

    def progress(self, words: ShimWords) -> Progress:
        """Counters of steps, moves and waits, with which the plan's assumptions are checked."""
        ledger = self.mover.ledger
        paging = self._link.paging
        counts = paging.counts() if paging is not None else None
        return Progress(
            words.step,
            time.monotonic_ns(),
            *ledger.large_batches(),
            words.barrier_wait_ns,
            ledger.late_moves,
            counts.faults if counts else 0,
            counts.fault_reads if counts else 0,
            counts.fault_read_ns if counts else 0,
        )

    def stall_decisions(self) -> Decisions:
        """Number of boundaries for each decision of StallTrial (plan/stall_trial.py): stall, do not
        stall, or undecided."""
        return self.mover.stall_decisions()

    def fast_bytes(self) -> int:
        """Bytes on the fast tier that are charged to the session; see PlanMover.fast_bytes()."""
        return self.mover.fast_bytes(self._barriers_hold())

    @property
    def residency_known(self) -> bool:
        """Whether fast_bytes() and by_tier() are complete; see PlanMover.residency_known."""
        return self.mover.residency_known

    def by_tier(self) -> list[int]:
        """Resident bytes of arena and heap by tier; see PlanMover.by_tier()."""
        return self.mover.by_tier(self._barriers_hold())

    def page_tiers(self) -> PageTiers:
        """The tier of each page of arena and heap; see PlanMover.page_tiers()."""
        return self.mover.page_tiers(self._barriers_hold())

    def stop(self) -> None:
        """Stop the mover and the boundary thread. Pages stay where they are. Further calls do
        nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        os.eventfd_write(self._wake_fd, 1)
        if self._pump.ident is not None:
            self._pump.join()
        self.mover.stop()
        self._link.segment.set_wake_position(0)
        os.close(self._wake_fd)
        self._memory.close()
        self._maps.close()

    def _barriers_hold(self) -> bool:
        return self._barriers.hold(self.mover.done_position)

    def _wake_at(self, position: int) -> None:
        """Make the boundary thread wake when the process has reached a position."""
        if self._link.segment.set_wake_position(position):
            os.eventfd_write(self._wake_fd, 1)

    def _carry(self) -> None:
        poll = select.poll()
        poll.register(self._link.event_fd, select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        reached, idle = -1, False
        while not self._stop.is_set():
            for ready, _ in poll.poll():
                if ready == self._wake_fd:
                    os.eventfd_read(self._wake_fd)
                else:
                    self._link.clear_event()
            position = self._link.segment.position()
            if position > reached:
                reached, idle = position, False
                self.mover.notify(position)
            elif not idle:
                # The shim stores a boundary's position before it writes to the eventfd. So the
                # previous wake-up may already have read this wake-up's position. That explains one
                # wake-up without a new position, but not two in a row.
                idle = True
            else:
                self._stop.wait(IDLE_WAKE_UP_S)


def _mover(tiers: Tiers, planned: Planned, process: ProcessPorts) -> PlanMover:
    memory, plan = process.memory, planned.plan
    if isinstance(memory, PagedMemory):
        return PagerMoves(memory, plan, process)
    step = PlannedStep.of(plan, planned.profile)
    return Mover(tiers, step, process, planned.budget_bytes)
