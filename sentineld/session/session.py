# SPDX-License-Identifier: Apache-2.0
"""One managed process: drives it from hello through profile and plan to managed.

All work on a session happens in the session's own thread, one command or one
look at the ring at a time; other threads only put commands into its queue.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sentineld.base.commands import Commands
from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.observe.pidfd import Pidfd
from sentineld.observe.shimlink import ShimLink
from sentineld.profile.meter import StepMeter
from sentineld.profile.steps import Step
from sentineld.profile.trace import Trace
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.intake.stepfeed import StepFeed
from sentineld.session.lifecycle import Lifecycle, State
from sentineld.session.live.shapes import Planned
from sentineld.session.plans.following import Following
from sentineld.session.requests import Requests
from sentineld.session.state import Saved, StateFiles
from sentineld.session.work.planning import Goal
from sentineld.session.work.profiling import Profiling
from sentineld.session.work.replanning import Replanning
from sentineld.session.work.request import Request

log = logging.getLogger(__name__)

POLL_S = 0.25
RECORDING_POLL_S = 0.05
"""A ring holds what a training records in this time many times over."""


class Session:
    """A registered process. Public methods may be called from any thread."""

    def __init__(self, link: ShimLink, machine: Machine, states: StateFiles) -> None:
        self.link = link
        self.lifecycle = Lifecycle()
        self.machine = machine
        self._states = states
        self._process = Pidfd(link.pid)
        self.observing = Observing(link, machine.config.log_records)
        self.name = f"{link.pid}-{self._process.start_ticks}"
        self._commands = Commands()
        self._thread = threading.Thread(target=self._run, name=f"session-{link.pid}", daemon=True)
        self._closing = False
        self.goal: Goal | None = None
        self.last_meter: StepMeter | None = None
        self._requests = Requests(link, machine, self.observing.exact_sampling)
        self._inbox = Inbox(link, self.observing)
        self._feed = StepFeed(link.segment)
        self._profiling: Profiling | None = None
        self.following = Following(link, machine, self._inbox, self.end)

    # Called from other threads.

    def start(self) -> None:
        """Begin to serve the session."""
        self.link.segment.set_barrier_timeout(self.machine.config.barrier_timeout_ms * 1_000_000)
        self.link.beat()
        self._thread.start()

    def beat(self) -> None:
        """Refresh the heartbeat that barriers in the process rely on."""
        if self.lifecycle.state is not State.ENDED:
            self.link.beat()

    def on_message(self, message: Message | None) -> None:
        """A message of the shim; None: its connection is gone."""
        if message is None:
            self._commands.put(lambda: self._end("the process let go of its connection"))
        else:
            self._commands.put(lambda: self._take(message))

    def attach(self, fast: FastBudget | None, policy_name: str | None) -> None:
        """Begin to manage. A managed process goes over to another budget or policy; that blocks
        until there is a plan for it, and if there is none all stays as it was. None: as it is, or
        as the configuration has it. Raises SentinelError."""
        self._wait_entered()
        replanning: Replanning | None = self._call(
            lambda: self._attach(self._goal(fast, policy_name))
        )
        if replanning is not None:
            replanning.wait()

    def detach(self) -> None:
        """Stop managing; the process runs on. Raises SentinelError."""
        self._call(self._detach)

    def meter(self, steps: int) -> list[StepMeter]:
        """Meter whole managed steps; blocks. Raises SentinelError."""
        self._wait_entered()
        metered: list[StepMeter] = self._call(lambda: self._meter(steps)).wait()
        self.last_meter = metered[-1]
        return metered

    def record(self, steps: int) -> Trace:
        """Record whole steps and one whose accesses are seen; blocks. Raises SentinelError."""
        self._wait_entered()
        trace: Trace = self._call(lambda: self._record(steps)).wait()
        return trace

    def _wait_entered(self) -> None:
        """A corrected plan takes the live one's place between two steps: nobody need know."""
        while self.lifecycle.state is State.ENTERING and self.following.managed is not None:
            time.sleep(RECORDING_POLL_S)

    def end(self, reason: str) -> None:
        """Let go of the process."""
        self._commands.put(lambda: self._end(reason))

    def close(self) -> None:
        """Let go of the process but keep its state files, for the daemon that follows."""
        self._closing = True
        self.end("the daemon stops")
        self._thread.join(timeout=10)

    def not_yet(self, what: str) -> SentinelError:
        """The error for what only a later state can do."""
        return SentinelError(
            "wrong-state",
            f"process {self.link.pid} {what}: it is {self.lifecycle.state}",
            "attach it, and wait until sentinelctl status says managed",
        )

    def _call(self, function: Callable[[], Any]) -> Any:
        try:
            return self._commands.call(function, self._ended)
        except EOFError:
            raise self.not_yet("can't be reached") from None

    # The session's thread.

    def _run(self) -> None:
        try:
            self._guarded(self._resume)
            while not self._ended():
                wait_s = RECORDING_POLL_S if self._records() else POLL_S
                self._guarded(self._commands.get(wait_s) or self._turn)
        except Exception:
            log.exception("session %d ends: the daemon met an error of its own", self.link.pid)
            self._end("the daemon met an error of its own")

    def _records(self) -> bool:
        following, request = self.following, self._requests.current
        return following.recording or request is not None or self._profiling is not None

    def _ended(self) -> bool:
        return self.lifecycle.state is State.ENDED

    def _guarded(self, act: Callable[[], None]) -> None:
        """Act, and let a session whose process or plan fails end in order."""
        try:
            act()
        except SentinelError as error:
            log.warning("process %d is not managed: %s", self.link.pid, error)
            self._unmanage(str(error))
        except EOFError:
            self._end("the process does not read its socket")
        except ProcessLookupError:
            # The module and move_pages say so before the pidfd is looked at again.
            self._end("the process exited")

    def _turn(self) -> None:
        if self._process.exited():
            self._end("the process exited")
            return
        self.observing.collect()
        self._requests.collect()
        if self.lifecycle.state is State.MANAGED and self._left_plan():
            return
        for step in self._feed.steps():
            self._on_step(step)
        if self.lifecycle.state in (State.ALLOCATION, State.PLANNING):
            self._plan()
        elif self.lifecycle.state is State.ENTERING:
            self._enter_plan()
        elif self.lifecycle.state is State.MANAGED:
            replanning = self._requests.replanned()
            if replanning is not None:
                self._go_over(replanning)
            else:
                self._correct()

    def _left_plan(self) -> bool:
        """Look at how the steps follow the live plan; whether it was left."""
        verdict = self.following.look()
        if verdict.leave:
            self._leave_plan(verdict.text)
        elif verdict.text:
            log.info("process %d: %s", self.link.pid, verdict.text)
            self.lifecycle.explain(verdict.text)
        return verdict.leave

    def _on_step(self, step: Step) -> None:
        if self._requests.current is not None:
            finished = self._requests.on_step(step)
            if finished is not None and self.following.managed is None:
                self._unmanage(finished.outcome)
        elif self._profiling is not None:
            self._profiling.on_step(step)
        else:
            self.following.on_step(step)

    def _plan(self) -> None:
        """Send the plan's layout as soon as there is a plan."""
        assert self._profiling is not None
        planned = self._profiling.planned()
        if planned is None:
            return
        again = self.following.shapes.find(planned.shape) is planned
        self.observing.end_profile()
        self._profiling = None
        self._send_plan(
            planned,
            "the plan that it had for these steps" if again else "the plan",
            f"policy {planned.plan.policy} predicts a fast share of "
            f"{planned.plan.predicted.fast_share:.1%}",
        )

    def _correct(self) -> None:
        """Follow what the live plan counted upon, and enter a corrected one when there is one."""
        if self._requests.current is not None:
            self.following.stop_recording()  # the ring is theirs
            return
        corrected = self.following.corrected()
        if corrected is not None:
            self._send_plan(corrected.planned, "the corrected plan", corrected.text)
        elif self.following.begin_recording():
            self._begin_recording()

    def _go_over(self, replanning: Replanning) -> None:
        """Enter the plan for another goal; the shapes' other plans were for the one before."""
        planned = replanning.planned()
        if planned is not None:
            self.goal = replanning.goal
            self.following.forget_shapes()
            self._send_plan(planned, "the plan", f"attached with {replanning.goal} from now on")
        self._requests.finish()

    def _send_plan(self, planned: Planned, what: str, why: str) -> None:
        """Begin to enter a plan; a live one is followed until its layout is taken."""
        layout_id = self.following.prepare(planned, what)
        # First, so that whoever follows knows the layout, whenever this daemon dies.
        self._states.entering(self.name, self._saved(), layout_id, planned)
        self.following.send()
        self.lifecycle.enter(State.ENTERING, why)

    def _enter_plan(self) -> None:
        """Follow the plan that was sent, once its layout is live."""
        live = self.following.enter()
        if live is None:
            return
        self.link.set_flags(off=protocol.Flag.RECORD)
        self._states.live(self.name, self._inbox.layout_id)
        self.lifecycle.enter(State.MANAGED, live)

    # Commands, run in the session's thread.

    def _goal(self, fast: FastBudget | None = None, policy_name: str | None = None) -> Goal:
        config = self.machine.config
        now = self.goal if self.lifecycle.state is not State.REGISTERED else None
        now = now or Goal(FastBudget.parse(config.fast), config.policy)
        return Goal(fast or now.fast, policy_name or now.policy)

    def _attach(self, goal: Goal) -> Replanning | None:
        if self.lifecycle.state is not State.REGISTERED:
            return self._attach_again(goal)
        self._requests.require_none()
        self.machine.require(goal.fast)
        self.goal = goal
        self.following.begin()
        self._begin_profiling(goal)
        self._states.attached(self.name, self._saved())
        self.machine.watch(self.link.pid)
        self.lifecycle.enter(State.ATTACHED, f"attached with {goal}")
        return None

    def _attach_again(self, goal: Goal) -> Replanning:
        """The live plan is followed until there is another one, and so is the profile kept."""
        if goal == self.goal or self.lifecycle.state is not State.MANAGED:
            raise SentinelError(
                "wrong-state",
                f"process {self.link.pid} is attached already ({self.goal}): it is"
                f" {self.lifecycle.state}",
                "once it is managed, give another --fast or --policy; or detach it first:"
                f" sentinelctl detach {self.link.pid}",
            )
        self.machine.require(goal.fast)
        replanning = self._requests.plan_again(goal, self.following.known())
        self.following.stop_recording()
        self.link.set_flags(off=protocol.Flag.RECORD)
        return replanning

    def _begin_profiling(self, goal: Goal) -> Profiling:
        self._profiling = Profiling(
            self.link,
            self.machine,
            self._inbox,
            self.observing.sampling,
            self.lifecycle,
            self.following.shapes,
            self.following.tiers,
            goal,
        )
        self.observing.prepare()
        self._begin_recording()
        return self._profiling

    def _begin_recording(self) -> None:
        self._feed.begin()
        self.link.set_flags(on=protocol.Flag.RECORD)

    def _detach(self) -> None:
        if self.lifecycle.state is State.REGISTERED:
            raise SentinelError(
                "wrong-state", f"process {self.link.pid} is not attached", "attach it first"
            )
        self._unmanage("detached")
        self._states.forget(self.name)

    def _unmanage(self, reason: str) -> None:
        """Back to registered: nothing armed, nothing recorded, no moves."""
        self._stop_managing(reason)
        self.link.set_flags(off=protocol.Flag.RECORD)
        try:
            self.link.send({"type": "detach"})
        except EOFError:
            self._end("the process does not read its socket")
            return
        self.machine.unwatch(self.link.pid)
        self.lifecycle.enter(State.REGISTERED, reason)

    def _leave_plan(self, reason: str) -> None:
        """Look for a plan that fits the steps: one that there is, or by a new profile."""
        left = self.following.leave(reason)
        self._stop_managing(reason)
        self._states.attached(self.name, self._saved())
        self.link.send({"type": "detach"})
        assert self.goal is not None
        self._begin_profiling(self.goal).skip_warm_up(left)
        self.lifecycle.enter(State.ALLOCATION, reason)

    def _stop_managing(self, reason: str) -> None:
        self._requests.fail(reason)
        self._profiling = None
        self.following.stop()
        self.observing.stop()

    def _meter(self, steps: int) -> Request[list[StepMeter]]:
        managed = self.following.managed
        if managed is None or self.lifecycle.state is not State.MANAGED:
            raise self.not_yet("can't be metered")
        metering = self._requests.meter(managed, self.following.tiers, steps)
        self._begin_recording()
        return metering

    def _record(self, steps: int) -> Request[Trace]:
        if self.lifecycle.state not in (State.REGISTERED, State.MANAGED):
            raise self.not_yet("can't be recorded")
        self._requests.require_none()
        self.machine.watch(self.link.pid)
        managed = self.following.managed
        recording = self._requests.record(managed, lambda: self._inbox.layers, steps)
        if managed is None:
            self.lifecycle.enter(State.REGISTERED, "it is being recorded")
        self._begin_recording()
        return recording

    def _take(self, message: Message) -> None:
        accesses = self._inbox.take(message)
        if self.lifecycle.state is State.ENTERING and self._inbox.layout_live:
            # At once: until then nobody moves what the new layout counts upon.
            self._enter_plan()
        if accesses is None:
            return
        if not self._requests.on_op_accesses(accesses) and self._profiling is not None:
            self._profiling.on_op_accesses(accesses)

    def _resume(self) -> None:
        """Take up what a dead daemon left: its plan if it is live, else its attach."""
        self.link.send({"type": "welcome", "session": self.name})
        layout_id = self.link.segment.words().layout_id
        left = self._states.load(self.name, layout_id)
        if left is None:
            if self.machine.config.auto_attach:
                self._attach(self._goal())
            return
        saved, planned = left.saved, left.planned
        goal = Goal(FastBudget.parse(saved.fast), saved.policy)
        if planned is None or saved.emulated != self.machine.substrate.emulated:
            self._attach(goal)
            self.lifecycle.explain("attached again after the daemon's restart")
            return
        self.machine.require(goal.fast)
        self.goal = goal
        self.machine.watch(self.link.pid)
        self.following.resume(planned, left.entered)
        self._states.live(self.name, layout_id)
        self.lifecycle.enter(State.MANAGED, "resumed after the daemon's restart")

    def _saved(self) -> Saved:
        assert self.goal is not None
        return Saved(str(self.goal.fast), self.goal.policy, self.machine.substrate.emulated)

    def _end(self, reason: str) -> None:
        if self.lifecycle.state is State.ENDED:
            return
        self._stop_managing(reason)
        self.machine.unwatch(self.link.pid)
        if not self._closing and self._process.exited():
            self._states.forget(self.name)
        self.observing.close()
        self.link.close()
        self.lifecycle.enter(State.ENDED, reason)
        log.info("session %d ends: %s", self.link.pid, reason)
