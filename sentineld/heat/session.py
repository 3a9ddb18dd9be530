# SPDX-License-Identifier: Apache-2.0
"""A session of policy `temperature`: a process without the shim, and the thread that manages it.

At intervals, the thread scans: it reads the page tables, has the accessed bit of one page of each
unit watched for a window, and updates the temperatures. In each turn, it compares the resident
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
from sentineld.base.units import FastBudget, format_bytes
from sentineld.heat.figures import Figures
from sentineld.heat.looking import Looking
from sentineld.heat.memory import ProcessMemory
from sentineld.heat.paging_out import PagingOut
from sentineld.heat.target import HeatTarget
from sentineld.machine.machine import Machine
from sentineld.model.records import PAGE_BYTES
from sentineld.session.lifecycle import CALLED_EXEC, EXITED, State, Status
from sentineld.session.turns import Turns
from sentineld.temperature.heat import Heat, Sample, excess_pages, room_pages
from sentineld.temperature.pacing import Pacing

log = logging.getLogger(__name__)

TURN_S = 0.05
"""Interval at which the thread compares the resident bytes with the budget."""
INTERVAL_S_MIN, INTERVAL_S_MAX = 1.0, 60.0
"""Limits on the interval between scans."""
WARM_UP_SCANS = 4
"""Scans before the first page-out: until then, all units look alike."""
SAMPLES_MAX = 1024
"""Pages that one scan looks at. Larger numbers make a scan take more CPU time."""
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
        self._looking = Looking(target)
        self._sample: Sample | None = None
        self._heat = Heat(np.random.default_rng(target.pid))
        limit = machine.require_tiers().migration_bytes_per_s
        self._paging_out = PagingOut(target, limit)
        self._pacing = Pacing(machine.config.scan_cpu_share, INTERVAL_S_MIN, INTERVAL_S_MAX)
        self._scan_s = 0.0  # when the last scan began
        self._scan_cpu_s = 0.0  # CPU time of the current scan
        self._share_from = (time.monotonic(), 0.0)  # time and CPU time at the last scan
        self._waits_for_scan = False  # no page that is known now can be paged out
        self._commands = Commands()
        self._stopping = threading.Event()
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
        """Release the process and wait until it is released."""
        self._stopping.set()
        self._commands.put(lambda: self._finish(reason))
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
        self._memory.refresh()
        self._follow_size()
        began_s = time.thread_time()
        self._scan()
        scanned_s = time.thread_time()
        self._scan_cpu_s += scanned_s - began_s
        self._keep_budget()
        self._count(
            scan_cpu_s=scanned_s - began_s,
            move_cpu_s=time.thread_time() - scanned_s,
        )

    def _count(self, **more: float) -> None:
        """Add to counters of the figures."""
        figures = self.figures
        self.figures = replace(
            figures, **{name: getattr(figures, name) + value for name, value in more.items()}
        )

    # Budget.

    def _reserve(self, fast: FastBudget) -> None:
        """Reserve the budget in bytes, and take it. Raises SentinelError."""
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
        if reason != self.status.reason:
            self.status = Status(self.status.state, reason)

    @property
    def _budget_pages(self) -> int:
        return self.figures.budget_bytes // PAGE_BYTES

    def _keep_budget(self) -> None:
        """Page out the coldest units while the resident bytes exceed the budget; otherwise prefetch
        the rest of units that have become hot."""
        if self.status.state is not State.MANAGED:
            return
        resident = self._memory.use.anonymous_bytes // PAGE_BYTES
        excess = excess_pages(resident, self._budget_pages)
        if not excess:
            self._explain("its resident memory is within the budget")
            self._prefetch(room_pages(resident, self._budget_pages))
        elif not self._waits_for_scan:
            self._page_out(excess)

    def _page_out(self, excess: int) -> None:
        allowed = self._paging_out.within_swap(excess)
        if self._paging_out.problem:
            self._explain(self._paging_out.problem)
        granted = self._paging_out.grant(allowed)
        if not granted:
            return
        self._note_returned(self._heat.renew(self._memory.units()))
        runs = self._heat.to_page_out(granted)
        if not len(runs):
            self._waits_for_scan = True
            self._explain(
                f"{format_bytes(excess * PAGE_BYTES)} above the budget cannot be paged out: "
                "the memory is locked, or shared with other processes"
            )
            return
        self._paging_out.page_out(runs, self._stopping.is_set)
        gone = self._heat.paged_out(runs, self._memory.units())
        self._count(paged_out_bytes=gone * PAGE_BYTES)

    def _prefetch(self, room: int) -> None:
        runs = self._heat.to_fetch(room)
        granted = self._paging_out.grant(int(runs["pages"].sum()))
        if granted and len(runs):
            self._paging_out.fetch(runs)
            self._count(prefetched_bytes=int(runs["pages"].sum()) * PAGE_BYTES)

    def _note_returned(self, pages: int) -> None:
        self._count(returned_bytes=pages * PAGE_BYTES)

    # Scans.

    def _scan(self) -> None:
        """Begin a scan if one is due, or end the scan whose window is over."""
        if self._sample is not None:
            self._end_scan(self._sample)
        elif time.monotonic() >= self._scan_s + self._pacing.interval_s:
            self._scan_s = time.monotonic()
            self._note_returned(self._heat.renew(self._memory.units(resize=True)))
            self._sample = self._heat.begin(SAMPLES_MAX)
            self._looking.begin(self._sample.pages)

    def _end_scan(self, sample: Sample) -> None:
        look = self._looking.result()
        if look is None:
            return
        if look.problem is not None and look.problem.code == "busy":
            self._looking.begin(sample.pages)  # another session is using DAMON
            return
        self._sample = None
        if look.problem is None:
            self._heat.end(sample, look.accessed, self._budget_pages)
        else:
            self._heat.end_unseen(self._budget_pages)
        self._waits_for_scan = False
        self._end_interval(look.cpu_s)
        self.figures = replace(
            self.figures, observed_by="damon" if look.problem is None else "swap-ins"
        )
        if self.status.state is State.ATTACHED and (
            look.problem is not None or self.figures.scans >= WARM_UP_SCANS
        ):
            self.status = Status(State.MANAGED, "its temperatures are known")

    def _end_interval(self, look_cpu_s: float) -> None:
        """Account for the CPU time of a scan."""
        self._count(scan_cpu_s=look_cpu_s, scans=1)
        self._pacing.note(self._scan_cpu_s + look_cpu_s)
        self._scan_cpu_s = 0.0
        figures, (then_s, then_cpu_s) = self.figures, self._share_from
        now_s, cpu_s = time.monotonic(), figures.scan_cpu_s + figures.move_cpu_s
        share = (cpu_s - then_cpu_s) / max(now_s - then_s, 1e-9)
        self._share_from = now_s, cpu_s
        self.figures = replace(figures, cpu_share=share, interval_s=self._pacing.interval_s)
