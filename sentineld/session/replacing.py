# SPDX-License-Identifier: Apache-2.0
"""Replaces the live plan of a process: another plan is made for another goal, for other placements
or for the session's new share of the shared budget, or the plan is corrected.

The live plan is followed until the process takes the new layout. It is kept if no other plan can be
made.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import format_bytes
from sentineld.model import protocol
from sentineld.observe.shim_link import ShimLink
from sentineld.session.attachment import Attachment
from sentineld.session.intake.inbox import Inbox
from sentineld.session.lifecycle import Lifecycle, State
from sentineld.session.plans.following import Following
from sentineld.session.plans.placing import Placing
from sentineld.session.requests import Requests
from sentineld.session.work.planning import Goal, PlanInput
from sentineld.session.work.replanning import Replanning

log = logging.getLogger(__name__)


class Replacing:
    """Replaces the live plans of one session. All calls come from the session's thread."""

    def __init__(
        self,
        link: ShimLink,
        lifecycle: Lifecycle,
        inbox: Inbox,
        following: Following,
        attachment: Attachment,
        requests: Requests,
    ) -> None:
        """inbox: holds the tensor placements that the script has requested."""
        self._link = link
        self._lifecycle = lifecycle
        self._inbox = inbox
        self._following = following
        self._attachment = attachment
        self._requests = requests
        self._placing = Placing()

    def require_switchable(self, goal: Goal) -> None:
        """Raise SentinelError if the process cannot be switched to this goal now."""
        if goal == self._attachment.goal or self._lifecycle.state is not State.MANAGED:
            raise SentinelError(
                "wrong-state",
                f"process {self._link.pid} is attached already ({self._attachment.goal}):"
                f" its state is {self._lifecycle.state}",
                "once it is managed, give another --fast or --policy; or detach it first:"
                f" sentinelctl detach {self._link.pid}",
            )
        self._requests.require_no_planning()

    def switch_to(self, goal: Goal) -> Replanning:
        """Begin to plan for another budget or policy, from the live plan's profile. Raises
        SentinelError, or RuntimeError if no thread can be started."""
        plan_input = self._following.plan_input()
        self._attachment.reserve(goal.fast.resolve(plan_input.profile.peak_bytes))
        try:
            return self._plan(goal, plan_input)
        except BaseException:
            self._attachment.settle()
            raise

    def turn(self) -> bool:
        """Begin to enter a finished plan, or begin to make one if the live plan must be replaced.

        Returns whether the times of steps are needed to decide on a correction; the caller must
        then make the shim record steps. Raises EOFError or SentinelError.
        """
        replanning = self._requests.replanned()
        if replanning is not None:
            self._switch(replanning)
            return False
        if self._requests.current is not None:
            # Do not correct the plan during a request: metering and recording need the ring of
            # recorded steps, and a replanning replaces the plan.
            self._following.stop_recording()
            return False
        self._attachment.settle()  # a larger budget may still be reserved for a former plan's pages
        if self._place() or self._resize() or self._correct():
            return False
        return self._following.begin_recording()

    def _correct(self) -> bool:
        """Compare the live plan's assumptions with measurements; returns whether a corrected plan
        has been sent."""
        corrected = self._following.corrected()
        if corrected is None:
            return False
        self._attachment.send(corrected.planned, "the corrected plan", corrected.text)
        return True

    def _place(self) -> bool:
        """Plan again if the script has changed the placement of tensors; returns whether planning
        has begun."""
        placed, following, goal = self._inbox.placed, self._following, self._attachment.goal
        plan_input = self._placing.wanted(following, placed)
        if plan_input is None or goal is None:
            return False
        try:
            self._plan(goal, plan_input)
        except SentinelError:
            return False  # the planning of an abandoned request still runs; the next turn retries
        self._placing.begun(following, placed)
        return True

    def _resize(self) -> bool:
        """Plan again if the session's share of the shared budget has changed; returns whether
        planning has begun."""
        goal = self._attachment.resized_goal()
        if goal is None:
            return False
        try:
            self._plan(goal, self._following.plan_input())
        except SentinelError:
            self._attachment.settle()
            return False  # the planning of an abandoned request still runs; the next turn retries
        return True

    def _plan(self, goal: Goal, plan_input: PlanInput) -> Replanning:
        replanning = self._requests.plan_again(goal, plan_input)
        self._following.stop_recording()
        self._link.set_flags(off=protocol.Flag.RECORD)
        return replanning

    def _switch(self, replanning: Replanning) -> None:
        """Begin to enter the plan that the replanning has made, and forget the plans kept for other
        shapes: they were made for the old goal or placements. If planning failed, keep the live
        plan."""
        planned, before = replanning.planned(), self._attachment.goal
        assert before is not None
        # The terms may have changed while the plan was made, so take the present ones.
        goal = replace(replanning.goal, terms=before.terms)
        places = goal == before
        # In a session with a share, no replanning changes both the share and the policy.
        resizes = goal.terms is not None and goal.fast != before.fast
        if planned is not None:
            self._attachment.change_goal(goal)
            why = f"switching to {goal}"
            if places:
                why = "the script has placed tensors"
            elif resizes:
                why = f"its share is now {format_bytes(planned.budget_bytes)}"
            self._attachment.send(planned, planned.name, why)
        else:
            self._attachment.settle()
            if resizes:
                self._attachment.share_failed(goal.fast.resolve(0))
        self._requests.finish()
        if planned is None and (places or resizes):
            # No caller gets the outcome of this replanning, so the status must show its failure.
            log.warning(
                "process %d: %s",
                self._link.pid,
                replanning.outcome,
                extra=about(LogEvent.NOT_REPLANNED),
            )
            self._lifecycle.explain(f"the live plan is kept; {replanning.outcome}")
