# SPDX-License-Identifier: Apache-2.0
"""A session of policy `temperature`: processes without the shim, and the thread that manages them.

At intervals, the thread scans: it reads the page tables, makes DAMON watch the accessed bit of one
page of each sampled unit for a window, and updates the temperatures. In each turn (every TURN_S, or
less often to limit the CPU time), it compares the resident bytes with the budget and pages the
coldest units out if necessary. The units of all processes of a group compete for one budget.
Nothing has to be undone when the session ends: the processes continue to run, and their accesses
swap their pages in.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from sentineld.base.commands import Command, Commands
from sentineld.base.errors import SentinelError, hung_up
from sentineld.base.log_events import LOGGED_FIELDS, LogEvent, about
from sentineld.base.log_limit import LOGGED_USER
from sentineld.base.units import FastBudget
from sentineld.heat.figures import Figures
from sentineld.heat.keeping import WITHIN, Keeping
from sentineld.heat.looking import Looking
from sentineld.heat.members import Members
from sentineld.heat.memory import SessionMemory
from sentineld.heat.paging_out import PagingOut
from sentineld.heat.quota import Quota
from sentineld.heat.scanning import Scanning
from sentineld.heat.sharing import HeatSharing
from sentineld.heat.target import Target, argument_of
from sentineld.machine.machine import Machine
from sentineld.migrate.advice import require_advice
from sentineld.model.records import PAGE_BYTES
from sentineld.policies.temperature.heat import Heat
from sentineld.session.goals import Attached, TermChanges, changed_goal
from sentineld.session.lifecycle import State, Status
from sentineld.session.turns import Turns
from sentineld.session.work.planning import Goal

log = logging.getLogger(__name__)

TEMPERATURE = "temperature"
"""The name of the policy. It makes no plans, so it is not in the registry of policies."""

TURN_S = 0.05
"""Interval at which the thread compares the resident bytes with the budget."""
TURN_SHARE = 0.005
"""Limit on the CPU time of reading the resident bytes, as a share of one core. For large groups,
this limit lengthens the interval."""
SHIM = "runs under the shim"
KNOWN = "the temperatures are known"
WAITS = "its share of the shared budget is still used by other sessions"


class HeatSession:
    """A managed target: a process, a process tree or a cgroup (target.py). Public methods may be
    called from any thread."""

    def __init__(
        self,
        target: Target,
        caller_uid: int,
        goal: Goal,
        machine: Machine,
        turns: Turns,
        quota: Quota,
    ) -> None:
        """caller_uid: the user who attaches the target. quota: of this user.

        Takes over the target. Raises SentinelError if the user may not manage the target or if the
        budget does not fit; the caller then still owns the target.
        """
        self.target = target
        self.goal = goal
        """Budget, or terms of the share. Replaced as a whole, so that any thread may read it."""
        self.status = Status(State.ATTACHED, "the temperatures of the pages are being measured")
        """Replaced as a whole, like `goal` and `figures`."""
        self.figures = Figures()
        self._machine = machine
        self._turns = turns
        self._members = Members(target, caller_uid, quota)
        self.uid = caller_uid
        """The user who owns the session: the owner of the single process, or the user who attached
        the group."""
        if not target.is_group:
            self.uid = next(member.peer.uid for member in self._members)
        self._sharing = HeatSharing(self, machine)
        try:
            self._set_up(goal)
        except BaseException:
            machine.release_budget(self)
            self._members.close()
            raise

    def _set_up(self, goal: Goal) -> None:
        machine, name = self._machine, self.target.name
        self._shortage = ""  # why the budget cannot follow the size of the processes
        self._hindrance = ""  # why pages could not be paged out
        self._memory = SessionMemory(self._members)
        self._members.each(lambda member: require_advice(member.process.fileno(), member.pid))
        self._memory.refresh()
        if not len(self._members):
            raise self._members.refusal()
        self._publish_use()
        self._reserve(goal)
        self._stopping = threading.Event()
        self._looking = Looking(f"look-{name}")
        heat = Heat(np.random.default_rng(self._members.pids[0]))
        self._paging_out = PagingOut(self._members, machine.page_out_bytes_per_s())
        self._keeping = Keeping(self._memory, heat, self._paging_out, self._stopping.is_set)
        self._scanning = Scanning(
            self._memory, self._keeping, heat, self._looking, machine.config.scan_cpu_share
        )
        self._share_from = (time.monotonic(), 0.0)  # time and CPU time at the last scan
        self._wanted_s = TURN_S  # interval between turns
        self._watch_cpu_s = 0.0  # CPU time of listing processes, reading sizes, following the share
        self._commands = Commands()
        self._thread = threading.Thread(target=self._run, name=f"heat-{name}", daemon=True)

    @property
    def name(self) -> str:
        """See Target."""
        return self.target.name

    @property
    def pid(self) -> int:
        """ID of the process or of the tree's root; for a cgroup, of one of its processes, or 0."""
        return self.target.pid or next(iter(self.figures.processes), 0)

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self.status.state is State.ENDED

    def start(self) -> None:
        """Begin to manage the processes. Raises RuntimeError if no thread can be started."""
        self._thread.start()

    def attach(
        self, fast: FastBudget | None, terms: TermChanges | None, gone: threading.Event
    ) -> None:
        """Change the budget, or the terms of the share; an argument that is None changes nothing.
        gone: set when the caller has hung up; nothing is changed then. Raises SentinelError."""

        def change() -> None:
            if gone.is_set():
                raise hung_up()
            named = Attached(self.target.title, argument_of(self.target))
            goal = changed_goal(self.goal, named, fast, None, terms)
            self._reserve(goal)
            self.goal = goal

        try:
            self._commands.call(change, lambda: self.ended or gone.is_set())
        except EOFError:
            if gone.is_set():
                raise hung_up() from None
            raise SentinelError(
                "no-such-process", f"{self.target.title}: {self.status.reason}", "attach it again"
            ) from None

    def leave_out(self, pid: int) -> None:
        """Begin to release a process because it now runs under the shim."""
        if self.target.is_group:
            self._commands.put(lambda: self._members.leave_out(pid, SHIM))
        else:
            self.end(f"the process {SHIM} now")

    def abandon(self) -> None:
        """Release the processes of a session that was not started."""
        self._finish("the session was not started")

    def end(self, reason: str) -> None:
        """Begin to release the processes."""
        self._stopping.set()
        self._commands.put(lambda: self._finish(reason))

    def logged_fields(self) -> dict[str, object]:
        """The facts for log lines about the session; see about()."""
        process = {"pid": self.target.pid} if self.target.pid else {}
        goal = {"policy": TEMPERATURE, "fast": self.goal.fast_text}
        return {"session": self.name, "uid": self.uid, **goal, **process}

    def join(self, timeout_s: float) -> bool:
        """Wait until the processes are released; returns whether they are. This takes at most about
        two windows (see looking.py), or longer if a process keeps its address space locked."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The session's thread.

    def _run(self) -> None:
        LOGGED_USER.set(self.uid)
        LOGGED_FIELDS.set(self.logged_fields)
        self._turns.enter(self.uid)
        try:
            turn_s = time.monotonic()
            while not self.ended:
                interval_s = self._turns.interval_s(self.uid, self._wanted_s)
                self._paging_out.pace(interval_s)
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
            self._finish(self.target.why_ended())
        except (SentinelError, OSError, RuntimeError) as error:
            self._finish(str(error), logging.WARNING)

    def _finish(self, reason: str, log_level: int = logging.INFO) -> None:
        if self.ended:
            return
        self.status = Status(State.ENDED, reason)
        self._machine.release_budget(self)
        self._looking.end()
        while self._looking.busy and self._looking.result() is None:
            time.sleep(TURN_S)  # another session may use DAMON only after the window
        self._members.close()
        self.target.close()
        log.log(
            log_level,
            "%s is not managed any more: %s",
            self.target.title,
            reason,
            extra=about(LogEvent.GROUP_LEFT),
        )

    def _turn(self) -> None:
        began_s = time.thread_time()
        self._members.look()
        self._watch_cpu_s += time.thread_time() - began_s
        scanned = self._scanning.turn(self._budget_pages)
        if scanned:
            began_s = time.thread_time()
            self._memory.refresh()
            self._watch_cpu_s += time.thread_time() - began_s
            self._follow_size()
            self._learn()
        began_s = time.thread_time()
        resident_bytes = self._memory.resident_bytes()
        reading_s = time.thread_time() - began_s
        self._wanted_s = max(TURN_S, reading_s / TURN_SHARE)
        self._watch_cpu_s += reading_s
        if self._memory.sharing_known:
            self.figures = replace(self.figures, resident_bytes=resident_bytes)
        self._follow_share(resident_bytes)
        began_s = time.thread_time()
        if self.status.state is State.ATTACHED and self._scanning.warm:
            # A session waits for its share while other sessions still use a part of it, which they
            # are paging out. During this wait, page nothing out. A session that is stuck (see
            # HeatSharing) does not wait any longer.
            if self._sharing.waits and not self._sharing.stuck:
                self._explain(WAITS)
            else:
                self.status = Status(State.MANAGED, KNOWN)
        if self.status.state is State.MANAGED:
            reason = self._keep(resident_bytes)
            if self._shortage or reason:
                self._explain(self._shortage or reason)
            elif self._sharing.waits:
                self._explain(WAITS)
            elif self.status.reason == WAITS:
                self._explain(KNOWN)
        self._publish_work(time.thread_time() - began_s, scanned)

    def _keep(self, resident_bytes: int) -> str:
        """Page out or prefetch; returns the reason for the status, empty if it stays."""
        before_bytes = self._keeping.paged_out_bytes
        reason = self._keeping.keep(resident_bytes, self.figures.budget_bytes)
        if reason:
            self._hindrance = reason if reason != WITHIN else ""
        elif self._hindrance and self._keeping.paged_out_bytes > before_bytes:
            # Page-outs go on, so the reason why they could not has passed.
            self._hindrance, reason = "", KNOWN
        return reason

    def _publish_work(self, move_cpu_s: float, scanned: bool) -> None:
        keeping, scanning, figures = self._keeping, self._scanning, self.figures
        figures = replace(
            figures,
            paged_out_bytes=keeping.paged_out_bytes,
            returned_bytes=keeping.returned_bytes,
            prefetched_bytes=keeping.prefetched_bytes,
            scans=scanning.scans,
            interval_s=scanning.interval_s,
            scan_cpu_s=scanning.cpu_s + self._watch_cpu_s,
            move_cpu_s=figures.move_cpu_s + move_cpu_s,
            observed_by=scanning.observed_by,
            **self._of_members(),
        )
        if scanned:
            then_s, then_cpu_s = self._share_from
            self._share_from = time.monotonic(), figures.scan_cpu_s + figures.move_cpu_s
            share = (self._share_from[1] - then_cpu_s) / max(self._share_from[0] - then_s, 1e-9)
            figures = replace(figures, cpu_share=share)
        self.figures = figures

    # Budget.

    def _reserve(self, goal: Goal) -> None:
        """Convert the budget to bytes, reserve it, and make it the session's budget; or let the
        session share the shared budget. Raises SentinelError."""
        if goal.terms is not None:
            self._sharing.join(goal.terms, self._size_bytes)
            budget_bytes = self._sharing.take(self.figures.resident_bytes)
        else:
            budget_bytes = max(goal.fast.resolve(self.figures.peak_bytes), PAGE_BYTES)
            self._machine.budgets.reserve(self, budget_bytes)
            self._machine.budgets.settle(self, budget_bytes)
        self._shortage = ""
        self.figures = replace(self.figures, budget_bytes=budget_bytes)

    @property
    def _size_bytes(self) -> int:
        """Size of the processes at the last refresh of the memory's use; their resident bytes if
        these are more now. Between two refreshes, the swapped bytes are not known."""
        use = self._memory.use
        return max(use.anonymous_bytes + use.swapped_bytes, self.figures.resident_bytes)

    @property
    def wanted_bytes(self) -> int:
        """The budget, or the share if the session shares the shared budget."""
        share = self._machine.share_of(self)
        return self.figures.budget_bytes if share is None else share.share_bytes

    def _learn(self) -> None:
        """If the session shares the shared budget, report how much its processes gain from
        memory."""
        if self.goal.terms is None or not self._scanning.warm:
            return
        began_s = time.thread_time()
        curve = self._scanning.curve()
        self._sharing.learn(curve, self._size_bytes)
        self.figures = replace(self.figures, working_set_bytes=curve.budgets_bytes[-1])
        self._watch_cpu_s += time.thread_time() - began_s

    def _follow_share(self, resident_bytes: int) -> None:
        """If the session shares the shared budget, make its share its budget."""
        if self.goal.terms is None:
            return
        began_s = time.thread_time()
        self._sharing.follow(self._size_bytes)
        budget_bytes = self._sharing.take(resident_bytes)
        if budget_bytes != self.figures.budget_bytes:
            self.figures = replace(self.figures, budget_bytes=budget_bytes)
        self._watch_cpu_s += time.thread_time() - began_s

    def _publish_use(self) -> None:
        use = self._memory.use
        self.figures = replace(
            self.figures,
            resident_bytes=use.anonymous_bytes,
            swapped_bytes=use.swapped_bytes,
            peak_bytes=max(self.figures.peak_bytes, use.anonymous_bytes + use.swapped_bytes),
            skipped_bytes=self._memory.skipped_bytes(),
            **self._of_members(),
        )

    def _of_members(self) -> dict[str, Any]:
        members = self._members
        return {
            "processes": members.pids,
            "left_out": members.left_out,
            "left_out_reason": members.left_out_reason,
        }

    def _follow_size(self) -> None:
        """Publish the size of the processes. A budget that is a share of the peak grows with the
        peak, as soon as the budgets of other sessions leave enough of the fast tier."""
        before_bytes = self.figures.peak_bytes
        self._publish_use()
        if self.goal.terms is not None:
            return
        grown = self.figures.peak_bytes != before_bytes and self.goal.fast.bytes is None
        if not grown and not self._shortage:
            return
        try:
            self._reserve(self.goal)
        except SentinelError as error:
            self._shortage = f"the budget cannot grow: {error.message}"
            self._explain(self._shortage)

    def _explain(self, reason: str) -> None:
        if reason and reason != self.status.reason:
            self.status = Status(self.status.state, reason)

    @property
    def _budget_pages(self) -> int:
        return self.figures.budget_bytes // PAGE_BYTES
