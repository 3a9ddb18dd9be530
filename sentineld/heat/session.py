# SPDX-License-Identifier: Apache-2.0
"""A session of policy `temperature`: a process without the shim, and the thread that manages it.

At intervals, the thread scans: it reads the page tables, makes DAMON watch the accessed bit of one
page of each unit for a window, and updates the temperatures. In each turn, it compares the resident
bytes with the budget and pages the coldest units out if necessary. The daemon keeps no state: after
the end of the session, the process continues to run, and its accesses bring its pages back.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from dataclasses import replace

import numpy as np

from sentineld.base.commands import Command, Commands
from sentineld.base.errors import SentinelError
from sentineld.base.log_limit import LOGGED_USER
from sentineld.base.units import FastBudget
from sentineld.heat.figures import Figures
from sentineld.heat.keeping import Keeping
from sentineld.heat.looking import Looking
from sentineld.heat.memory import ProcessMemory
from sentineld.heat.paging_out import PagingOut
from sentineld.heat.scanning import Scanning
from sentineld.heat.target import HeatTarget
from sentineld.machine.machine import Machine
from sentineld.model.records import PAGE_BYTES
from sentineld.session.lifecycle import CALLED_EXEC, EXITED, State, Status
from sentineld.session.turns import Turns
from sentineld.temperature.heat import Heat

log = logging.getLogger(__name__)

TURN_S = 0.05
"""Interval at which the thread compares the resident bytes with the budget."""
EXIT_S = 1.0
"""Time in which a process whose address space is gone has to exit. If it does not, it has called
exec()."""


class HeatSession:
    """A managed process without the shim. Public methods may be called from any thread."""

    def __init__(
        self, target: HeatTarget, fast: FastBudget, machine: Machine, turns: Turns
    ) -> None:
        """Takes over the target. Raises SentinelError if the budget does not fit; the target is
        then still the caller's."""
        self.target = target
        self.name = f"{target.pid}-{target.process.start_ticks}"
        self.fast = fast
        self.status = Status(State.ATTACHED, "the temperatures of its pages are being measured")
        """Replaced as a whole, like `figures`."""
        self.figures = Figures()
        self._machine = machine
        self._turns = turns
        self._memory = ProcessMemory(target)
        self._memory.refresh()
        self._publish_use()
        self._reserve(fast)
        self._stopping = threading.Event()
        self._looking = Looking(target)
        heat = Heat(np.random.default_rng(target.pid))
        paging_out = PagingOut(target, machine.require_tiers().migration_bytes_per_s)
        self._keeping = Keeping(self._memory, heat, paging_out, self._stopping.is_set)
        self._scanning = Scanning(self._keeping, heat, self._looking, machine.config.scan_cpu_share)
        self._share_from = (time.monotonic(), 0.0)  # time and CPU time at the last scan
        self._commands = Commands()
        self._thread = threading.Thread(target=self._run, name=f"heat-{target.pid}", daemon=True)

    @property
    def pid(self) -> int:
        """The process ID."""
        return self.target.pid

    @property
    def uid(self) -> int:
        """The user who owns the process."""
        return self.target.peer.uid

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self.status.state is State.ENDED

    def start(self) -> None:
        """Begin to manage the process. Raises RuntimeError if no thread can be started."""
        self._thread.start()

    def attach(self, fast: FastBudget) -> None:
        """Change the budget. Raises SentinelError."""

        def change() -> None:
            self._reserve(fast)
            self.fast = fast

        try:
            self._commands.call(change, lambda: self.ended)
        except EOFError:
            raise SentinelError(
                "no-such-process", f"process {self.pid}: {self.status.reason}", "attach it again"
            ) from None

    def abandon(self) -> None:
        """Release the process of a session that was not started."""
        self._finish("the session was not started")

    def end(self, reason: str) -> None:
        """Begin to release the process."""
        self._stopping.set()
        self._commands.put(lambda: self._finish(reason))

    def join(self) -> None:
        """Wait until the process is released, which takes at most about two windows."""
        self._thread.join()

    # The session's thread.

    def _run(self) -> None:
        LOGGED_USER.set(self.uid)
        self._turns.enter(self.uid)
        try:
            turn_s = time.monotonic()
            while not self.ended:
                interval_s = self._turns.interval_s(self.uid, TURN_S)
                command = self._commands.get(max(turn_s + interval_s - time.monotonic(), 0.0))
                self._guarded(command or self._turn)
                if command is None:
                    turn_s = time.monotonic()
        finally:
            self._turns.leave(self.uid)
            self._finish("internal error of the daemon")

    def _guarded(self, act: Command) -> None:
        """Call act(); an error ends the session."""
        try:
            act()
        except ProcessLookupError:
            self._finish(self._why_gone())
        except (SentinelError, OSError, RuntimeError) as error:
            log.warning("process %d is not managed any more: %s", self.pid, error)
            self._finish(str(error))

    def _finish(self, reason: str) -> None:
        if self.ended:
            return
        self.status = Status(State.ENDED, reason)
        self._machine.budgets.settle(self, 0)
        while self._looking.busy and self._looking.result() is None:
            time.sleep(TURN_S)  # the window's thread uses the target's descriptors
        self.target.close()
        log.info("process %d is not managed any more: %s", self.pid, reason)

    def _why_gone(self) -> str:
        poll = select.poll()
        poll.register(self.target.process.fileno(), select.POLLIN)
        return EXITED if poll.poll(EXIT_S * 1e3) else CALLED_EXEC

    def _turn(self) -> None:
        if self.target.process.exited():
            raise ProcessLookupError
        resident_bytes = self._memory.resident_bytes()
        self.figures = replace(self.figures, resident_bytes=resident_bytes)
        scanned = self._scanning.turn(self._budget_pages)
        if scanned:
            self._memory.refresh()
            self._follow_size()
            if self.status.state is State.ATTACHED and self._scanning.warm:
                self.status = Status(State.MANAGED, "its temperatures are known")
        began_s = time.thread_time()
        if self.status.state is State.MANAGED:
            self._explain(self._keeping.keep(resident_bytes, self.figures.budget_bytes))
        self._publish_work(time.thread_time() - began_s, scanned)

    def _publish_work(self, move_cpu_s: float, scanned: bool) -> None:
        keeping, scanning, figures = self._keeping, self._scanning, self.figures
        figures = replace(
            figures,
            paged_out_bytes=keeping.paged_out_bytes,
            returned_bytes=keeping.returned_bytes,
            prefetched_bytes=keeping.prefetched_bytes,
            scans=scanning.scans,
            interval_s=scanning.interval_s,
            scan_cpu_s=scanning.cpu_s,
            move_cpu_s=figures.move_cpu_s + move_cpu_s,
            observed_by=scanning.observed_by,
        )
        if scanned:
            then_s, then_cpu_s = self._share_from
            self._share_from = time.monotonic(), figures.scan_cpu_s + figures.move_cpu_s
            share = (self._share_from[1] - then_cpu_s) / max(self._share_from[0] - then_s, 1e-9)
            figures = replace(figures, cpu_share=share)
        self.figures = figures

    # Budget.

    def _reserve(self, fast: FastBudget) -> None:
        """Convert the budget to bytes, reserve it, and make it the session's budget. Raises
        SentinelError."""
        budget_bytes = max(fast.resolve(self.figures.peak_bytes), PAGE_BYTES)
        self._machine.budgets.reserve(self, budget_bytes)
        self._machine.budgets.settle(self, budget_bytes)
        self.figures = replace(self.figures, budget_bytes=budget_bytes)

    def _publish_use(self) -> None:
        use = self._memory.use
        self.figures = replace(
            self.figures,
            resident_bytes=use.anonymous_bytes,
            swapped_bytes=use.swapped_bytes,
            peak_bytes=max(self.figures.peak_bytes, use.anonymous_bytes + use.swapped_bytes),
            skipped_bytes=self._memory.skipped_bytes(),
        )

    def _follow_size(self) -> None:
        """Publish the size of the process. A budget that is a share of the peak grows with it."""
        before_bytes = self.figures.peak_bytes
        self._publish_use()
        if self.figures.peak_bytes == before_bytes or self.fast.bytes is not None:
            return
        try:
            self._reserve(self.fast)
        except SentinelError as error:
            self._explain(f"its budget cannot grow: {error.message}")

    def _explain(self, reason: str) -> None:
        if reason and reason != self.status.reason:
            self.status = Status(self.status.state, reason)

    @property
    def _budget_pages(self) -> int:
        return self.figures.budget_bytes // PAGE_BYTES
