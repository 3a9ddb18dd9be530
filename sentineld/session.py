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

from sentineld.commands import Commands
from sentineld.control.frames import Message
from sentineld.errors import SentinelError
from sentineld.inbox import Inbox
from sentineld.lifecycle import Lifecycle, State
from sentineld.machine import Machine
from sentineld.managed import Managed
from sentineld.metering import Metering
from sentineld.observe.pidfd import Pidfd
from sentineld.observe.shimlink import ShimLink
from sentineld.plan.model import Plan
from sentineld.profile.meter import StepMeter
from sentineld.profile.model import Profile
from sentineld.profile.steps import Step
from sentineld.profile.trace import Trace
from sentineld.profiling import Goal, Planned, Profiling, send_layout
from sentineld.recording import Recording
from sentineld.sampling import Observing, Sampling
from sentineld.shim import protocol
from sentineld.state import Saved, StateFiles
from sentineld.stepfeed import StepFeed
from sentineld.tiers import Tiers
from sentineld.totals import PastTotals
from sentineld.units import FastBudget, format_bytes

log = logging.getLogger(__name__)

POLL_S = 0.25
RECORDING_POLL_S = 0.05
"""A ring holds what a training records in this time many times over."""

LAYOUT_ANSWER_WAIT_S = 120.0


class Session:
    """A registered process. Public methods may be called from any thread."""

    def __init__(self, link: ShimLink, machine: Machine, states: StateFiles) -> None:
        self.link = link
        self.lifecycle = Lifecycle()
        self.machine = machine
        self._states = states
        self._process = Pidfd(link.pid)
        self._observing = Observing(link, machine.config.log_records)
        self.name = f"{link.pid}-{self._process.start_ticks}"
        self._commands = Commands()
        self._thread = threading.Thread(target=self._run, name=f"session-{link.pid}", daemon=True)
        self._closing = False
        self.goal: Goal | None = None
        self.budget_bytes = 0
        self.profile: Profile | None = None
        self.managed: Managed | None = None
        self.sampling: Sampling | None = None
        self.last_meter: StepMeter | None = None
        self.plan_duration_s: float | None = None
        self._past = PastTotals()
        self._errand: Metering | Recording | None = None
        self._inbox = Inbox(link, self._observing)
        self._feed = StepFeed(link.segment)
        self._profiling: Profiling | None = None
        self._planned: Planned | None = None
        self._deadline_s = 0.0

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

    def attach(self, goal: Goal) -> None:
        """Begin to manage. Raises SentinelError."""
        self._call(lambda: self._attach(goal))

    def detach(self) -> None:
        """Stop managing; the process runs on. Raises SentinelError."""
        self._call(self._detach)

    def meter(self, steps: int) -> list[StepMeter]:
        """Meter whole managed steps; blocks. Raises SentinelError."""
        metering: Metering = self._call(lambda: self._meter(steps))
        metered = metering.wait()
        self.last_meter = metered[-1]
        return metered

    def record(self, steps: int) -> Trace:
        """Record whole steps and one whose accesses are seen; blocks. Raises SentinelError."""
        recording: Recording = self._call(lambda: self._record(steps))
        return recording.wait()

    def end(self, reason: str) -> None:
        """Let go of the process."""
        self._commands.put(lambda: self._end(reason))

    def close(self) -> None:
        """Let go of the process but keep its state files, for the daemon that follows."""
        self._closing = True
        self.end("the daemon stops")
        self._thread.join(timeout=10)

    def totals(self) -> PastTotals:
        """What moved and was sampled since the session began, over all its plans."""
        totals = self._past.copy()
        totals.add(self.managed, self.sampling)
        return totals

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
                recording = self._errand is not None or self._profiling is not None
                wait_s = RECORDING_POLL_S if recording else POLL_S
                self._guarded(self._commands.get(wait_s) or self._turn)
        except Exception:
            log.exception("session %d ends: the daemon met an error of its own", self.link.pid)
            self._end("the daemon met an error of its own")

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
        if self.sampling is not None:
            self.sampling.collect()
        if isinstance(self._errand, Recording):
            self._errand.collect()
        managed = self.managed
        if managed is not None and not managed.follow(self.link.segment.words()):
            self._profile_again("its steps changed")
            return
        for step in self._feed.steps():
            self._on_step(step)
        if self.lifecycle.state is State.PLANNING:
            self._plan()
        elif self.lifecycle.state is State.ENTERING:
            self._enter_plan()

    def _on_step(self, step: Step) -> None:
        if self._errand is not None:
            if self._errand.on_step(step):
                self._end_errand(self._errand)
        elif self._profiling is not None:
            self._profiling.on_step(step, self._sample, self._inbox.layers)

    def _sample(self) -> Sampling:
        """The session's sampling by the best backend, attached to the process at its first use."""
        if self.sampling is None:
            self.sampling = self._observing.open()
        return self.sampling

    def _sample_exactly(self) -> Sampling:
        """The same, but by a backend that tells stretches apart. Raises SentinelError."""
        if self.sampling is None:
            self.sampling = self._observing.open_exact()
        return self.sampling

    def _plan(self) -> None:
        """Send the plan's layout as soon as there is a plan."""
        assert self._profiling is not None
        planned = self._profiling.planned(self._inbox.layers)
        if planned is None:
            return
        self._profiling, self._planned = None, planned
        if self.sampling is not None and not self.sampling.exact:
            # It holds what only a profile needs, such as write protection; metering it can't.
            self.sampling.close()
            self.sampling = None
        self.profile, self.budget_bytes = planned.profile, planned.budget_bytes
        self.plan_duration_s = planned.plan_duration_s
        layout = planned.plan.layout
        accesses = self.machine.substrate.accesses(layout, planned.charged, self._tiers())
        fast_pages = self.machine.substrate.fast_pages(planned.plan, planned.profile.page_bytes)
        layout_id = send_layout(self.link, layout, self._tiers(), accesses, fast_pages)
        self._inbox.expect_layout(layout_id)
        self._deadline_s = time.monotonic() + LAYOUT_ANSWER_WAIT_S
        self.lifecycle.enter(
            State.ENTERING,
            f"policy {planned.plan.policy} predicts a fast share of "
            f"{planned.plan.predicted.fast_share:.1%}",
        )

    def _enter_plan(self) -> None:
        """Once the layout is live, bring the pages where the plan begins and follow it."""
        if not self._inbox.layout_live:
            if time.monotonic() > self._deadline_s:
                raise SentinelError("failed", "the process did not take the layout in time")
            return
        assert self._planned is not None
        self.managed = self._managed(self._planned.plan, self._planned.profile)
        self.managed.enter()
        self.link.set_flags(off=protocol.Flag.RECORD)
        self.managed.start()
        self._save(self._inbox.layout_id)
        self.lifecycle.enter(
            State.MANAGED, f"the plan is live, budget {format_bytes(self.budget_bytes)}"
        )

    def _managed(self, plan: Plan, profile: Profile) -> Managed:
        memory = self.machine.substrate.memory
        return Managed(self.link, plan, profile, self._tiers(), memory, on_exit=self.end)

    def _tiers(self) -> Tiers:
        tiers = self.machine.tiers
        assert tiers is not None, "attach requires tiers"
        return tiers

    # Commands, run in the session's thread.

    def _attach(self, goal: Goal) -> None:
        if self.lifecycle.state is not State.REGISTERED:
            raise SentinelError(
                "wrong-state",
                f"process {self.link.pid} is attached already",
                f"detach it first: sentinelctl detach {self.link.pid}",
            )
        self._require_no_errand()
        self.machine.require(goal.fast)
        self.goal = goal
        self._begin_profiling(goal)
        self._save(0)
        self.machine.watch(self.link.pid)
        self.lifecycle.enter(
            State.ATTACHED, f"attached with policy {goal.policy}, fast {goal.fast}"
        )

    def _begin_profiling(self, goal: Goal) -> Profiling:
        self._profiling = Profiling(
            self.link, self.machine, self._tiers(), goal, self.lifecycle.enter
        )
        self._observing.prepare()
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

    def _profile_again(self, reason: str) -> None:
        log.info("process %d is profiled again: %s", self.link.pid, reason)
        self._stop_managing(reason)
        self._save(0)
        self.link.send({"type": "detach"})
        assert self.goal is not None
        self._begin_profiling(self.goal).skip_warm_up()
        self.lifecycle.enter(State.ALLOCATION, reason)

    def _stop_managing(self, reason: str) -> None:
        if self._errand is not None:
            self._errand.fail(f"process {self.link.pid}: {reason}")
            self._errand = None
        self._profiling = None
        if self.managed is not None:
            self.managed.stop()
        if self.sampling is not None:
            self.sampling.close()
        managed, sampling, self.managed, self.sampling = self.managed, self.sampling, None, None
        self._past.add(managed, sampling)

    def _meter(self, steps: int) -> Metering:
        if self.managed is None or self.lifecycle.state is not State.MANAGED:
            raise self.not_yet("can't be metered")
        self._require_no_errand()
        metering = self.machine.substrate.metering(
            self.link, self.managed, self._sample_exactly, self._tiers(), steps
        )
        self._begin_errand(metering)
        return metering

    def _record(self, steps: int) -> Recording:
        if self.lifecycle.state not in (State.REGISTERED, State.MANAGED):
            raise self.not_yet("can't be recorded")
        self._require_no_errand()
        self.machine.watch(self.link.pid)
        recording = Recording(
            self.link,
            self.machine,
            self.managed,
            self._sample_exactly,
            lambda: self._inbox.layers,
            steps,
        )
        if self.managed is None:
            self.lifecycle.enter(State.REGISTERED, "it is being recorded")
        self._begin_errand(recording)
        return recording

    def _require_no_errand(self) -> None:
        if self._errand is not None:
            what = f"process {self.link.pid} is being {self._errand.doing}"
            raise SentinelError("wrong-state", what, "wait until that is done")

    def _begin_errand(self, errand: Metering | Recording) -> None:
        self._errand = errand
        self._begin_recording()

    def _end_errand(self, errand: Metering | Recording) -> None:
        self._errand = None
        self.link.set_flags(off=protocol.Flag.RECORD)
        errand.done()
        if isinstance(errand, Recording) and self.managed is None:
            self._unmanage(errand.outcome)

    def _take(self, message: Message) -> None:
        accesses = self._inbox.take(message)
        if accesses is None:
            return
        if isinstance(self._errand, Recording):
            self._errand.on_op_accesses(accesses)
        elif self._profiling is not None:
            self._profiling.on_op_accesses(accesses.step, accesses.rows)

    def _resume(self) -> None:
        """Take up what a dead daemon left: its plan if it is live, else its attach."""
        self.link.send({"type": "welcome", "session": self.name})
        loaded = self._states.load(self.name)
        config = self.machine.config
        if loaded is None:
            if config.auto_attach:
                self._attach(Goal(FastBudget.parse(config.fast), config.policy))
            return
        saved, plan, profile = loaded
        goal = Goal(FastBudget.parse(saved.fast), saved.policy)
        same = self.link.segment.words().layout_id == saved.layout_id
        same = same and saved.emulated == self.machine.substrate.emulated
        if plan is None or profile is None or not same:
            self._attach(goal)
            self.lifecycle.reason = "attached again after the daemon's restart"
            return
        self.machine.require(goal.fast)
        self.goal = goal
        self.budget_bytes, self.profile = saved.budget_bytes, profile
        self.machine.watch(self.link.pid)
        self.managed = self._managed(plan, profile)
        self.managed.start()
        self.lifecycle.enter(State.MANAGED, "resumed after the daemon's restart")

    def _save(self, layout_id: int) -> None:
        assert self.goal is not None
        emulated = self.machine.substrate.emulated
        saved = Saved(str(self.goal.fast), self.goal.policy, self.budget_bytes, layout_id, emulated)
        plan = self.managed.plan if self.managed and layout_id else None
        self._states.save(self.name, saved, plan, self.profile)

    def _end(self, reason: str) -> None:
        if self.lifecycle.state is State.ENDED:
            return
        self._stop_managing(reason)
        self.machine.unwatch(self.link.pid)
        if not self._closing and self._process.exited():
            self._states.forget(self.name)
        self._observing.close()
        self.link.close()
        self.lifecycle.enter(State.ENDED, reason)
        log.info("session %d ends: %s", self.link.pid, reason)
