# SPDX-License-Identifier: Apache-2.0
"""Drives one process through the states of a session (lifecycle.py)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import FastBudget
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.model.records import TensorName
from sentineld.observe.shim_link import ShimLink
from sentineld.profile.meter import StepMeter
from sentineld.profile.steps import Step
from sentineld.profile.trace import Trace
from sentineld.session.attachment import Attachment
from sentineld.session.goals import Attached, TermChanges, changed_goal, first_goal
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.intake.step_feed import StepFeed
from sentineld.session.lifecycle import CALLED_EXEC, EXITED, NOT_READING, Lifecycle, State
from sentineld.session.live.shapes import Shape
from sentineld.session.plans.following import Following
from sentineld.session.replacing import Replacing
from sentineld.session.requests import Requests
from sentineld.session.state import StateFiles
from sentineld.session.work.planning import Goal
from sentineld.session.work.profiling import Profiling, Sought
from sentineld.session.work.replanning import Replanning
from sentineld.session.work.request import Request

log = logging.getLogger(__name__)

OWN_CHECK_S = 1.0
"""Interval at which the session checks that the user who connected still owns the process. One
check takes 50 microseconds."""


class Driver:
    """The driver of one session. All calls come from the session's thread, except not_yet() and,
    before that thread starts, set_barrier_timeout().

    Other threads may read ended, lifecycle, observing, following, attachment.goal and
    attachment.rule: each of these attributes is either thread-safe or only replaced as a whole.
    Session.close() sets keeps_files.
    """

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        states: StateFiles,
        on_mover_exit: Callable[[str], None],
    ) -> None:
        """on_mover_exit: called from the mover's thread if the mover can't continue, with the
        reason."""
        self.lifecycle = Lifecycle()
        paged = bool(machine.substrate.paged)
        self.observing = Observing(link, machine.config.log_records, paged)
        self.keeps_files = False
        """Whether end() keeps the state files even if the program has ended."""
        self._link = link
        self._machine = machine
        self._process = link.peer.process
        self._own_check_s = 0.0
        self._inbox = Inbox(link, self.observing)
        self._feed = StepFeed(link.segment)
        self._profiling: Profiling | None = None
        self._request_step = 0  # the process's step when the last request began
        self._requests = Requests(link, machine, self.observing.exact_sampling)
        self.following = Following(link, machine, self._inbox, on_mover_exit)
        self.attachment = Attachment(link, machine, states, self.lifecycle, self.following)
        self._replacing = Replacing(
            link, self.lifecycle, self._inbox, self.following, self.attachment, self._requests
        )

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self.lifecycle.state is State.ENDED

    @property
    def tensor_names(self) -> Mapping[int, TensorName]:
        """As Inbox.names. Any thread may read it, because it is only replaced as a whole."""
        return self._inbox.names

    @property
    def recording(self) -> bool:
        """Whether the process may be recording steps. If so, its ring of records must be read
        often."""
        following, request = self.following, self._requests.current
        return following.recording or request is not None or self._profiling is not None

    @property
    def found_records(self) -> bool:
        """Whether the last turn found records in the ring."""
        return self._feed.found_records

    def logged_fields(self) -> dict[str, object]:
        """The facts for log lines about the session; see about()."""
        held = self.attachment
        goal = {"policy": held.goal.policy, "fast": held.goal.fast} if held.goal else {}
        return {"session": held.name, "pid": self._link.pid, "uid": self._link.uid, **goal}

    def not_yet(self, what: str) -> SentinelError:
        """The error for a verb that the current state does not allow."""
        return SentinelError(
            "wrong-state",
            f"process {self._link.pid} {what}: its state is {self.lifecycle.state}",
            "attach it, and wait until sentinelctl status says managed",
        )

    def set_barrier_timeout(self) -> None:
        """Tell the process how long it may wait at a boundary."""
        self._link.segment.set_barrier_timeout(self._machine.config.barrier_timeout_ms * 1_000_000)

    # A turn handles everything that the process has done since the previous turn.

    def turn(self) -> None:
        """Read the ring of recorded steps and act on its records. Raises SentinelError if the
        process can't be managed any longer, EOFError if the process does not read its socket,
        ProcessLookupError if the process exits during the turn, or OSError if the daemon lacks
        descriptors."""
        if self._process.exited():
            self.end(EXITED)
            return
        if self.lifecycle.state is not State.REGISTERED and time.monotonic() > self._own_check_s:
            # If no descriptor is free, the next turn repeats the check. Another user can cause this
            # shortage, so the failed check must not make this process unmanaged.
            with contextlib.suppress(OSError):
                self.require_own()
        self.attachment.count_for_shares()
        self.observing.collect()
        self._requests.collect()
        if self._profiling is not None:
            self._profiling.note_unmanaged_bytes()
        if self.lifecycle.state is State.MANAGED and self._left_plan():
            return
        for step in self._feed.steps():
            self._on_step(step)
        if self.lifecycle.state in (State.ALLOCATION, State.PLANNING):
            self._plan()
        elif self.lifecycle.state is State.ACCESS:
            assert self._profiling is not None
            self._profiling.check_idle()
        elif self.lifecycle.state is State.ENTERING:
            self.attachment.enter()
        elif self.lifecycle.state is State.MANAGED and self._replacing.turn():
            self._begin_recording()

    def take(self, message: Message) -> None:
        """Handle a message from the shim. Raises the same errors as turn()."""
        accesses = self._inbox.take(message)
        if self.lifecycle.state is State.ENTERING and self._inbox.layout_live:
            # Do not wait for the next turn: moves begin only when the mover follows the new plan.
            self.attachment.enter()
        if accesses is None:
            return
        if not self._requests.on_op_accesses(accesses) and self._profiling is not None:
            self._profiling.on_op_accesses(accesses)

    def mover_ended(self, reason: str) -> None:
        """Handle the failure of the live plan's mover: end the session if the process has exited,
        else only stop managing the process."""
        if self._process.exited():
            self.end(EXITED)
        elif self.following.managed is not None:
            self.unmanage(reason)

    def require_own(self) -> None:
        """Check that the user who connected still owns the process. If not, end the session, so
        that no later verb gives that user access to the process, and raise SentinelError."""
        try:
            self._link.peer.require_own()
        except SentinelError as error:
            self.end(error.message)
            raise
        self._own_check_s = time.monotonic() + OWN_CHECK_S

    def _left_plan(self) -> bool:
        """Leave the live plan if the steps no longer follow it; returns whether it was left."""
        verdict = self.following.look()
        if verdict.leave:
            self._leave_plan(verdict.text)
        elif verdict.text:
            log.info(
                "process %d: %s", self._link.pid, verdict.text, extra=about(LogEvent.PLAN_WRONG)
            )
            self.lifecycle.explain(verdict.text)
        return verdict.leave

    def _on_step(self, step: Step) -> None:
        if self._requests.current is not None:
            finished = self._requests.on_step(step)
            if finished is not None:
                self._request_ended(finished)
        elif self._profiling is not None:
            self._profiling.on_step(step)
        else:
            self.following.on_step(step)

    def _plan(self) -> None:
        """If profiling has found a plan or can make one now, send the plan's layout. Blocks while
        the plan is made."""
        assert self._profiling is not None
        if self.lifecycle.state is State.PLANNING:
            goal = self.attachment.take_share()
            if goal is None:
                return
            self._profiling.goal = goal
        planned = self._profiling.planned()
        if planned is None:
            return
        again = self.following.shapes.find(planned.shape) is planned
        self.observing.end_profile()
        self._profiling = None
        self.attachment.send(
            planned,
            "the earlier plan for these steps" if again else planned.name,
            f"policy {planned.plan.policy} predicts a fast share of "
            f"{planned.plan.predicted.fast_share:.1%}",
        )

    # Verbs.

    def attach(
        self,
        fast: FastBudget | None,
        policy_name: str | None,
        terms: TermChanges | None = None,
    ) -> Replanning | None:
        """Begin to manage a process, or to switch a managed process to another budget or policy.

        fast, policy_name: if None, a managed process keeps its current value, and any other process
        gets the configured value. terms: fields of Terms that are set or changed, for a session
        that shares the shared budget. If the daemon has a shared budget, a session without `fast`
        shares it. Returns the replanning to wait for if the process is switched, else None. Raises
        SentinelError.
        """
        self.require_own()
        before = self.attachment.goal
        if self.lifecycle.state is State.REGISTERED:
            self.attach_to(first_goal(self._machine, fast, policy_name, terms))
            return None
        assert before is not None
        goal = changed_goal(before, Attached.process(self._link.pid), fast, policy_name, terms)
        switches = goal.policy != before.policy or not terms
        if switches:
            # Check this before change_terms(): if the switch is refused, the terms must not
            # change.
            self._replacing.require_switchable(goal)
        if terms and goal.terms is not None:
            self.attachment.change_terms(goal.terms)
        return self._replacing.switch_to(goal) if switches else None

    def attach_to(self, goal: Goal) -> None:
        """Begin to manage a process that is not attached. Raises the same errors as turn()."""
        self._requests.require_none()
        goal = self.attachment.admit(goal)
        try:
            self.set_barrier_timeout()
            self.following.begin()
            self._begin_profiling(goal)
        except (SentinelError, OSError, RuntimeError) as error:
            # The error of a verb reaches only the caller, so release the budget here.
            self.unmanage(f"it can't be attached: {error}")
            raise
        self.attachment.save()
        how = f"attached with {self.attachment.goal}"
        if self.attachment.rule:
            how += f", by {self.attachment.rule}"
        self.lifecycle.enter(State.ATTACHED, how)
        log.info("process %d is %s", self._link.pid, how, extra=about(LogEvent.ATTACHED))

    def detach(self) -> None:
        """Stop managing. If an error has ended the management already, forget the session, so that
        the next daemon does not attach the process again. Raises SentinelError."""
        if self.lifecycle.state is State.REGISTERED and not self.attachment.is_saved():
            raise SentinelError(
                "wrong-state", f"process {self._link.pid} is not attached", "attach it first"
            )
        log.info("process %d is detached", self._link.pid, extra=about(LogEvent.DETACHED))
        self.unmanage("detached")
        self.attachment.forget()

    def meter(self, steps: int) -> Request[list[StepMeter]]:
        """Begin to meter. Raises SentinelError."""
        managed = self.following.managed
        if managed is None or self.lifecycle.state is not State.MANAGED:
            raise self.not_yet("can't be metered")
        self.require_own()
        # Check this first: if this call is refused, the sampling of the current request must go on.
        self._requests.require_none()
        try:
            metering = self._requests.meter(managed, self.following.tiers, steps)
        except BaseException:
            self.observing.end_sampling()
            raise
        self._begin_request()
        return metering

    def record(self, steps: int) -> Request[Trace]:
        """Begin to record. Raises SentinelError."""
        if self.lifecycle.state not in (State.REGISTERED, State.MANAGED):
            raise self.not_yet("can't be recorded")
        self.require_own()
        self._requests.require_none()
        self._machine.watch(self._link.pid, self._link.uid)
        managed = self.following.managed
        try:
            recording = self._requests.record(managed, self._inbox, steps)
        except BaseException:
            if managed is None:
                self._machine.unwatch(self._link.pid)
            raise
        if managed is None:
            self.lifecycle.enter(State.REGISTERED, "it is being recorded")
        self._begin_request()
        return recording

    def cancel(self, request: Request[Any]) -> None:
        """Give up a request whose caller has hung up."""
        if not self._requests.cancel(request):
            return
        log.info("process %d is not %s: the caller hung up", self._link.pid, request.doing)
        self._request_ended(request)
        if self.following.managed is not None:
            self.attachment.settle()

    def _begin_request(self) -> None:
        self._request_step = self._link.segment.words().step
        self.following.stop_recording()
        self._begin_recording()

    def _request_ended(self, request: Request[Any]) -> None:
        """Release what the session needs only for requests."""
        if self.following.managed is None:
            self.unmanage(request.outcome)
        elif self._link.segment.words().step > self._request_step:
            # If no step has begun since the request, the process has not read the messages of this
            # request. So do not send another one: the next request can use the same sampling.
            self.observing.end_sampling()

    # State transitions.

    def unmanage(self, reason: str) -> None:
        """Return to the state REGISTERED: disarm all pages, stop recording, and stop moving pages.
        Does nothing after end()."""
        if self.ended:
            return
        self._stop_managing(reason)
        self._link.set_flags(off=protocol.Flag.RECORD | protocol.Flag.NO_STALLS)
        try:
            self._link.send({"type": "detach"})
        except EOFError:
            self.end(NOT_READING)
            return
        self.attachment.release()
        self.attachment.rule = ""
        self.lifecycle.enter(State.REGISTERED, reason)

    def leave_layout(self) -> None:
        """Make the process leave its layout, although no mover follows it. Raises EOFError."""
        self._link.segment.open_barriers()
        self._link.send({"type": "detach"})

    def end(self, reason: str) -> None:
        """Release the process and end the session."""
        if self.ended:
            return
        # All callbacks run, in reverse order, even if one of them fails. Otherwise the resources of
        # the remaining callbacks would never be released.
        with contextlib.ExitStack() as release:
            release.callback(self.lifecycle.enter, State.ENDED, reason)
            if not self.keeps_files:
                release.callback(self.attachment.prune)
            release.callback(self._link.close)
            release.callback(self.observing.close)
            if not self.keeps_files and (self._process.exited() or reason == CALLED_EXEC):
                release.callback(self.attachment.forget)
            release.callback(self.attachment.release)
            self._stop_managing(reason)
        log.info("session %d ends: %s", self._link.pid, reason, extra=about(LogEvent.SESSION_ENDED))

    def _begin_profiling(self, goal: Goal, left: Shape | None = None) -> None:
        if self._link.segment.words().layout_id:
            # Make the process leave its layout. Otherwise the layout's cuts would be recorded as
            # boundaries of the process's steps.
            self.leave_layout()
        self._profiling = Profiling(
            self._link,
            self._machine,
            self._inbox,
            self.observing,
            self.lifecycle,
            Sought(goal, self.following.tiers, self.following.shapes, left),
        )
        self.observing.prepare()
        self._begin_recording()

    def _begin_recording(self) -> None:
        self._feed.begin()
        self._link.set_flags(on=protocol.Flag.RECORD)

    def _leave_plan(self, reason: str) -> None:
        """Leave the live plan, and begin to find a plan that fits the steps: an earlier plan, or a
        plan from a new profile."""
        left = self.following.leave(reason)
        self._stop_managing(reason)
        self.attachment.settle()  # a pending replanning may have reserved a larger budget
        self.attachment.save()
        assert self.attachment.goal is not None
        self._begin_profiling(self.attachment.goal, left)
        self.lifecycle.enter(State.ALLOCATION, reason)

    def _stop_managing(self, reason: str) -> None:
        with contextlib.ExitStack() as stop:  # runs all callbacks, as in end()
            stop.callback(self.observing.stop)
            stop.callback(self.following.stop)
            self._inbox.forget_layouts()
            self._profiling = None
            self._requests.fail(reason)
