# SPDX-License-Identifier: Apache-2.0
"""Drives one process through the states of a session (lifecycle.py)."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import FastBudget, format_bytes
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.model.records import TensorName
from sentineld.observe.matching import Candidate, matching_rule
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.division import Terms
from sentineld.profile.meter import StepMeter
from sentineld.profile.steps import Step
from sentineld.profile.trace import Trace
from sentineld.session.goals import TermChanges, changed_goal, first_goal, saved_goal, to_save
from sentineld.session.intake.inbox import Inbox
from sentineld.session.intake.sampling import Observing
from sentineld.session.intake.step_feed import StepFeed
from sentineld.session.lifecycle import CALLED_EXEC, EXITED, Lifecycle, State
from sentineld.session.live.shapes import Planned, Shape
from sentineld.session.plans.following import Following
from sentineld.session.plans.placing import Placing
from sentineld.session.plans.sharing import Sharing
from sentineld.session.requests import Requests
from sentineld.session.state import Saved, StateFiles
from sentineld.session.welcome import welcome
from sentineld.session.work.planning import Goal, PlanInput
from sentineld.session.work.profiling import Profiling
from sentineld.session.work.replanning import Replanning
from sentineld.session.work.request import Request

log = logging.getLogger(__name__)

OWN_CHECK_S = 1.0
"""Interval at which the session checks that the user who connected still owns the process. One
check takes 50 microseconds."""


class Driver:
    """The driver of one session. All calls come from the session's thread, except not_yet() and,
    before that thread starts, set_barrier_timeout().

    Other threads may read ended, lifecycle, goal, rule, observing and following: each of these
    attributes is either thread-safe or only replaced as a whole. Session.close() sets keeps_files.
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
        self.goal: Goal | None = None
        self.rule = ""
        """Origin of the rule that attached the process; "": a verb or auto_attach attached it."""
        self.observing = Observing(link, machine.config.log_records)
        self.keeps_files = False
        """Whether end() keeps the state files even if the program has ended."""
        self._link = link
        self._machine = machine
        self._states = states
        self._process = link.peer.process
        self._own_check_s = 0.0
        self.name = f"{link.pid}-{self._process.start_ticks}"
        self._inbox = Inbox(link, self.observing)
        self._feed = StepFeed(link.segment)
        self._profiling: Profiling | None = None
        self._placing = Placing()
        self._sharing = Sharing(link, machine)
        self._requests = Requests(link, machine, self.observing.exact_sampling)
        self.following = Following(link, machine, self._inbox, on_mover_exit)

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
        """Whether the process may be recording steps. If so, its ring must be read often."""
        following, request = self.following, self._requests.current
        return following.recording or request is not None or self._profiling is not None

    @property
    def found_records(self) -> bool:
        """Whether the last turn found records in the ring."""
        return self._feed.found_records

    def logged_fields(self) -> dict[str, object]:
        """The facts for log lines about the session; see about()."""
        goal = {"policy": self.goal.policy, "fast": self.goal.fast} if self.goal else {}
        return {"session": self.name, "pid": self._link.pid, "uid": self._link.uid, **goal}

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
        """Read the ring and act on its records. Raises SentinelError if the process can't be
        managed any longer, EOFError if the process does not read its socket, ProcessLookupError if
        the process exits during the turn, or OSError if the daemon lacks descriptors."""
        if self._process.exited():
            self.end(EXITED)
            return
        if self.lifecycle.state is not State.REGISTERED and time.monotonic() > self._own_check_s:
            # If no descriptor is free, the next turn repeats the check. Another user can cause this
            # shortage, so the failed check must not make this process unmanaged.
            with contextlib.suppress(OSError):
                self._require_own()
        self._count_for_shares()
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
        elif self.lifecycle.state is State.ENTERING:
            self._enter_plan()
        elif self.lifecycle.state is State.MANAGED:
            replanning = self._requests.replanned()
            if replanning is not None:
                self._switch(replanning)
            else:
                self._correct()

    def take(self, message: Message) -> None:
        """Handle a message from the shim. Raises the same errors as turn()."""
        accesses = self._inbox.take(message)
        if self.lifecycle.state is State.ENTERING and self._inbox.layout_live:
            # Do not wait for the next turn: moves begin only when the mover follows the new plan.
            self._enter_plan()
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

    def _count_for_shares(self) -> None:
        """If the session shares the shared budget and its process runs steps, include the session
        in the division of the budget."""
        idle = self.lifecycle.state in (State.REGISTERED, State.ATTACHED)
        if self._machine.shared is not None and not idle:
            self._machine.shared.count(self._link)

    def _require_own(self) -> None:
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
            if finished is not None and self.following.managed is None:
                self.unmanage(finished.outcome)
        elif self._profiling is not None:
            self._profiling.on_step(step)
        else:
            self.following.on_step(step)

    def _plan(self) -> None:
        """If profiling has found a plan or can make one now, send the plan's layout. Blocks while
        the plan is made."""
        assert self._profiling is not None
        if self.lifecycle.state is State.PLANNING and not self._take_share(self._profiling):
            return
        planned = self._profiling.planned()
        if planned is None:
            return
        again = self.following.shapes.find(planned.shape) is planned
        self.observing.end_profile()
        self._profiling = None
        self._send_plan(
            planned,
            "the earlier plan for these steps" if again else _name(planned),
            f"policy {planned.plan.policy} predicts a fast share of "
            f"{planned.plan.predicted.fast_share:.1%}",
        )

    def _take_share(self, profiling: Profiling) -> bool:
        """If the session shares the shared budget, reserve its share for the plan; returns whether
        the plan can be made now."""
        assert self.goal is not None
        if self.goal.terms is None:
            return True
        share_bytes = self._sharing.take(self.following)
        if share_bytes is None:
            self.lifecycle.explain("its share of the shared budget is still used by other sessions")
            return False
        goal = self.goal.with_share(share_bytes)
        if goal != self.goal:
            # The plans kept for other shapes have other budgets, which other sessions may use soon.
            self.following.forget_shapes()
        self.goal = profiling.goal = goal
        return True

    def _correct(self) -> None:
        """Compare the live plan's assumptions with measurements; enter a corrected plan as soon as
        there is one."""
        if self._requests.current is not None:
            # Do not correct the plan during a request: metering and recording need the ring, and a
            # replanning replaces the plan.
            self.following.stop_recording()
            return
        if self._place() or self._resize():
            return
        corrected = self.following.corrected()
        if corrected is not None:
            self._send_plan(corrected.planned, "the corrected plan", corrected.text)
        elif self.following.begin_recording():
            self._begin_recording()

    def _place(self) -> bool:
        """Plan again if the script has changed the placement of tensors; returns whether planning
        has begun."""
        placed, following = self._inbox.placed, self.following
        plan_input = self._placing.wanted(following, placed)
        if plan_input is None or self.goal is None:
            return False
        try:
            self._plan_again(self.goal, plan_input)
        except SentinelError:
            return False  # an abandoned planning still runs; the next turn tries again
        self._placing.begun(following, placed)
        return True

    def _resize(self) -> bool:
        """Plan again if the session's share of the shared budget has changed; returns whether
        planning has begun."""
        if self.goal is None or self.goal.terms is None:
            return False
        share_bytes = self._sharing.resize(self.following, self.goal.policy)
        if share_bytes is None:
            return False
        try:
            self._plan_again(self.goal.with_share(share_bytes), self.following.plan_input())
        except SentinelError:
            self._settle_budget()
            return False  # an abandoned planning still runs; the next turn tries again
        return True

    def _switch(self, replanning: Replanning) -> None:
        """Begin to enter the plan for the new budget and policy, and forget the plans made for the
        old budget and policy. If planning failed, keep the live plan."""
        planned, before = replanning.planned(), self.goal
        assert before is not None
        # The terms may have changed while the plan was made.
        goal = replace(replanning.goal, terms=before.terms)
        places = goal == before
        # In a session with a share, no replanning changes both the share and the policy.
        resizes = goal.terms is not None and goal.fast != before.fast
        if planned is not None:
            self.goal = goal
            self.following.forget_shapes()
            if goal.policy != before.policy:
                self._sharing.stop()
            why = f"switching to {goal}"
            if places:
                why = "the script has placed tensors"
            elif resizes:
                why = f"its share is now {format_bytes(planned.budget_bytes)}"
            self._send_plan(planned, _name(planned), why)
        else:
            self._settle_budget()
            if resizes:
                self._sharing.failed(goal.fast.resolve(0))
        self._requests.finish()
        if planned is None and (places or resizes):
            # No caller gets the outcome of this replanning, so the status must show its failure.
            log.warning(
                "process %d: %s",
                self._link.pid,
                replanning.outcome,
                extra=about(LogEvent.NOT_REPLANNED),
            )
            self.lifecycle.explain(f"the live plan is kept; {replanning.outcome}")

    def _send_plan(self, planned: Planned, what: str, why: str) -> None:
        """Begin to enter a plan. If another plan is live, it is followed until the process takes
        the new layout.

        Raises EOFError or SentinelError. SentinelError is raised, for example, if other sessions
        have reserved the budget since the plan was made."""
        self._machine.budgets_of(self._link).reserve(self._link, planned.budget_bytes)
        layout_id = self.following.prepare(planned, what)
        # Save the plan before sending it: the next daemon needs the plan of any layout that may be
        # live.
        self._states.entering(self.name, self._saved(), layout_id, planned)
        self.following.send()
        self.lifecycle.enter(State.ENTERING, why)

    def _enter_plan(self) -> None:
        """If the layout that was sent is live, begin to follow its plan."""
        live = self.following.enter()
        if live is None:
            return
        self._link.set_flags(off=protocol.Flag.RECORD | protocol.Flag.NO_STALLS)
        self._states.live(self.name, self._inbox.layout_id)
        self._settle_budget()
        planned, goal = self.following.planned, self.goal
        if planned and goal and planned.plan.policy != goal.policy:
            live += f"; {planned.plan.policy} made it, because {goal.policy} failed"
        self._manage(live)

    def _manage(self, why: str) -> None:
        self.lifecycle.enter(State.MANAGED, why)
        log.info("process %d is managed: %s", self._link.pid, why, extra=about(LogEvent.MANAGED))

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
        self._require_own()
        before = self.goal
        if self.lifecycle.state is State.REGISTERED:
            self._attach(first_goal(self._machine, fast, policy_name, terms))
            return None
        assert before is not None
        goal = changed_goal(before, self._link.pid, fast, policy_name, terms)
        switches = goal.policy != before.policy or not terms
        if switches:
            self._require_switchable(goal)  # the terms do not change either if this fails
        if terms and goal.terms is not None:
            self._machine.join(self._link, goal.terms)
            self.goal = replace(before, terms=goal.terms)
            self._states.changed_terms(self.name, self._saved())
        return self._attach_again(goal) if switches else None

    def _attach(self, goal: Goal) -> None:
        self._requests.require_none()
        try:
            if goal.terms is None:
                self._machine.require(self._link, goal.fast)
            else:
                goal = self._joined(goal, goal.terms)
            self._machine.watch(self._link.pid)  # fails if no descriptor is free
        except (OSError, SentinelError):
            self._machine.release_budget(self._link)
            raise
        self.goal = goal
        self.set_barrier_timeout()
        self.following.begin()
        self._begin_profiling(goal)
        self._states.attached(self.name, self._saved())
        how = f"attached with {goal}" + (f", by {self.rule}" if self.rule else "")
        self.lifecycle.enter(State.ATTACHED, how)
        log.info("process %d is %s", self._link.pid, how, extra=about(LogEvent.ATTACHED))

    def _joined(self, goal: Goal, terms: Terms) -> Goal:
        """Let the session share the shared budget; returns the goal with its share."""
        self._machine.join(self._link, terms)
        assert self._machine.shared is not None
        return goal.with_share(self._machine.shared.share_bytes(self._link))

    def _require_switchable(self, goal: Goal) -> None:
        """Raise SentinelError if the process cannot be switched to this goal now."""
        if goal == self.goal or self.lifecycle.state is not State.MANAGED:
            raise SentinelError(
                "wrong-state",
                f"process {self._link.pid} is attached already ({self.goal}): its state is"
                f" {self.lifecycle.state}",
                "once it is managed, give another --fast or --policy; or detach it first:"
                f" sentinelctl detach {self._link.pid}",
            )
        self._requests.require_none()

    def _attach_again(self, goal: Goal) -> Replanning:
        """Begin to plan for another budget or policy, from the live plan's profile. Meanwhile, the
        live plan is followed."""
        plan_input = self.following.plan_input()
        budget_bytes = goal.fast.resolve(plan_input.profile.peak_bytes)
        self._machine.budgets_of(self._link).reserve(self._link, budget_bytes)
        try:
            return self._plan_again(goal, plan_input)
        except BaseException:
            self._settle_budget()
            raise

    def _plan_again(self, goal: Goal, plan_input: PlanInput) -> Replanning:
        replanning = self._requests.plan_again(goal, plan_input)
        self.following.stop_recording()
        self._link.set_flags(off=protocol.Flag.RECORD)
        return replanning

    def detach(self) -> None:
        """Stop managing. Raises SentinelError."""
        if self.lifecycle.state is State.REGISTERED:
            raise SentinelError(
                "wrong-state", f"process {self._link.pid} is not attached", "attach it first"
            )
        log.info("process %d is detached", self._link.pid, extra=about(LogEvent.DETACHED))
        self.unmanage("detached")
        self._states.forget(self.name)

    def meter(self, steps: int) -> Request[list[StepMeter]]:
        """Begin to meter. Raises SentinelError."""
        managed = self.following.managed
        if managed is None or self.lifecycle.state is not State.MANAGED:
            raise self.not_yet("can't be metered")
        self._require_own()
        metering = self._requests.meter(managed, self.following.tiers, steps)
        self.following.stop_recording()
        self._begin_recording()
        return metering

    def record(self, steps: int) -> Request[Trace]:
        """Begin to record. Raises SentinelError."""
        if self.lifecycle.state not in (State.REGISTERED, State.MANAGED):
            raise self.not_yet("can't be recorded")
        self._require_own()
        self._requests.require_none()
        self._machine.watch(self._link.pid)
        managed = self.following.managed
        recording = self._requests.record(managed, lambda: self._inbox.layers, steps)
        if managed is None:
            self.lifecycle.enter(State.REGISTERED, "it is being recorded")
        self.following.stop_recording()
        self._begin_recording()
        return recording

    def cancel(self, request: Request[Any]) -> None:
        """Give up a request whose caller has hung up."""
        if not self._requests.cancel(request):
            return
        log.info("process %d is not %s: the caller hung up", self._link.pid, request.doing)
        if self.following.managed is None:
            self.unmanage(request.outcome)
        else:
            self._settle_budget()

    # State transitions.

    def resume(self) -> None:
        """Answer the hello. If an earlier daemon saved a session of this process, resume this
        session: follow its plan if the plan is still live and resumable (Saved.resumable()), else
        attach the process again. If no session was saved, the configuration decides whether to
        attach the process. Raises the same errors as turn()."""
        layout_id = self._link.segment.words().layout_id
        welcome(self._link, self._machine, self.name, has_layout=bool(layout_id))
        if self._link.hello.get("session") != self.name:
            # No daemon has welcomed this program before. If there are state files, they belong to
            # the program that the process ran before it called exec().
            self._states.forget(self.name)
        restored = self._states.load(self.name, layout_id)
        if restored is None:
            self._attach_by_rule()
            return
        saved, planned = restored.saved, restored.planned
        self.rule = saved.rule
        goal = saved_goal(self._machine, saved)
        substrate, nodes = self._machine.substrate, self._machine.nodes()
        if planned is None or not saved.resumable(substrate.emulated, substrate.paged, nodes):
            self._attach(goal)
            self.lifecycle.explain("attached again after the daemon's restart")
            return
        self._require_own()
        if goal.terms is None:
            self._machine.require(self._link, goal.fast)
        else:
            self._machine.join(self._link, goal.terms)
        try:
            self._machine.budgets_of(self._link).reserve(self._link, planned.budget_bytes)
        except SentinelError as error:
            if goal.terms is None:
                raise
            # The shared budget may have become smaller. The session gets another share of it.
            self._attach(goal)
            self.lifecycle.explain(f"attached again after the daemon's restart: {error.message}")
            return
        self.goal = goal
        self._machine.watch(self._link.pid)
        self.following.resume(planned, restored.entered)
        self._states.live(self.name, layout_id)
        self._manage("resumed after the daemon's restart")

    def _attach_by_rule(self) -> None:
        """Attach the process if the configuration says so. Raises the same errors as turn()."""
        config = self._machine.config
        rule = matching_rule(config.attach, Candidate(self._link.pid, self._link.uid))
        if rule is None:
            if config.auto_attach:
                self.attach(None, None)
        elif rule.manage:
            self.rule = rule.origin
            # attach() checks that the process has not exited. If it has not, its ID was not reused,
            # so the rule was compared with this process.
            self.attach(FastBudget.parse(rule.fast) if rule.fast else None, rule.policy or None)
        else:
            self.lifecycle.explain(f"left alone by {rule.origin}")

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
            self.end("the process does not read its socket")
            return
        self._machine.unwatch(self._link.pid)
        self._sharing.stop()
        self._machine.release_budget(self._link)
        self.rule = ""
        self.lifecycle.enter(State.REGISTERED, reason)

    def end(self, reason: str) -> None:
        """Release the process and end the session."""
        if self.ended:
            return
        # All callbacks run, in reverse order, even if one of them fails. Otherwise the resources of
        # the remaining callbacks would never be released.
        with contextlib.ExitStack() as release:
            release.callback(self.lifecycle.enter, State.ENDED, reason)
            release.callback(self._link.close)
            release.callback(self.observing.close)
            if not self.keeps_files and (self._process.exited() or reason == CALLED_EXEC):
                release.callback(self._states.forget, self.name)
            release.callback(self._sharing.stop)
            release.callback(self._machine.release_budget, self._link)
            release.callback(self._machine.unwatch, self._link.pid)
            self._stop_managing(reason)
        log.info("session %d ends: %s", self._link.pid, reason, extra=about(LogEvent.SESSION_ENDED))

    def _begin_profiling(self, goal: Goal, left: Shape | None = None) -> None:
        if self._link.segment.words().layout_id:
            # Make the process leave its layout. Otherwise the layout's cuts would be recorded as
            # boundaries of the process's steps.
            self._link.send({"type": "detach"})
        self._profiling = Profiling(
            self._link,
            self._machine,
            self._inbox,
            self.observing,
            self.lifecycle,
            self.following.shapes,
            self.following.tiers,
            goal,
            left,
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
        self._settle_budget()  # a pending replanning may have reserved a larger budget
        self._states.attached(self.name, self._saved())
        assert self.goal is not None
        self._begin_profiling(self.goal, left)
        self.lifecycle.enter(State.ALLOCATION, reason)

    def _settle_budget(self) -> None:
        """Keep only the live plan's budget reserved."""
        if self.goal is not None and self.goal.terms is not None:
            self._sharing.settle(self.following)
            return
        managed = self.following.planned
        self._machine.budgets.settle(self._link, managed.budget_bytes if managed else 0)

    def _stop_managing(self, reason: str) -> None:
        with contextlib.ExitStack() as stop:  # runs all callbacks, as in end()
            stop.callback(self.observing.stop)
            stop.callback(self.following.stop)
            self._profiling = None
            self._requests.fail(reason)

    def _saved(self) -> Saved:
        assert self.goal is not None
        return to_save(self._machine, self.goal, self.rule)


def _name(planned: Planned) -> str:
    return "the plan for steps of varying sizes" if planned.shape.sizes_vary else "the plan"
