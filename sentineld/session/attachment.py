# SPDX-License-Identifier: Apache-2.0
"""The goal, the budget of fast memory and the state files of an attached process.

Each plan of the process is entered in the same order: its budget is reserved, its state files are
written, and its layout is sent. When the layout is live, more than the plan's budget may be
reserved, for example because an earlier plan had a larger budget. The excess is released when it is
no longer charged.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.division import Terms
from sentineld.session.goals import to_save
from sentineld.session.lifecycle import Lifecycle, State
from sentineld.session.live.shapes import Planned
from sentineld.session.plans.following import Following
from sentineld.session.plans.sharing import Sharing
from sentineld.session.state import Restored, Saved, StateFiles
from sentineld.session.work.planning import Goal

log = logging.getLogger(__name__)

OVERDUE = "the process has not taken the plan's layout yet; it does so when a training step ends"
"""Status reason of a session that waits long in state ENTERING."""


class Attachment:
    """The goal, budget and state files of an attached process. All calls come from the session's
    thread. Other threads may read goal and rule, which are only replaced as a whole."""

    def __init__(
        self,
        link: ShimLink,
        machine: Machine,
        states: StateFiles,
        lifecycle: Lifecycle,
        following: Following,
    ) -> None:
        self.goal: Goal | None = None
        """The goal of the last attach; None: the process has not been attached."""
        self.rule = ""
        """Origin of the rule that attached the process; "": a verb or auto_attach attached it."""
        self.name = f"{link.pid}-{link.peer.process.start_ticks}"
        """The session's name, which is also the name of its state files."""
        self._link = link
        self._machine = machine
        self._states = states
        self._lifecycle = lifecycle
        self._following = following
        self._sharing = Sharing(link, machine)
        self._layout_id = 0

    # The goal and the budget.

    def admit(self, goal: Goal) -> Goal:
        """Reserve the budget and watch the process; returns the goal. If the session shares the
        shared budget, the returned goal contains the session's share. Raises SentinelError, or
        OSError if no descriptor is free; no budget is then reserved."""
        try:
            self._reserve_or_join(goal)
            if goal.terms is not None:
                assert self._machine.shared is not None
                goal = goal.with_share(self._machine.shared.share_bytes(self._link))
            # This fails if no descriptor is free.
            self._machine.watch(self._link.pid, self._link.uid)
        except (OSError, SentinelError):
            self._machine.release_budget(self._link)
            raise
        self.goal = goal
        return goal

    def resume(self, goal: Goal, restored: Restored, layout_id: int) -> SentinelError | None:
        """Take over an earlier daemon's plan that is still live: reserve its budget, watch the
        process and follow the plan.

        Returns an error if the shared budget, which may have become smaller, has no room for the
        plan. The caller must then call admit(), which reserves another share. Every other failure
        raises SentinelError, ProcessLookupError or OSError.
        """
        planned = restored.planned
        assert planned is not None
        self._reserve_or_join(goal)
        try:
            self.reserve(planned.budget_bytes)
        except SentinelError as error:
            if goal.terms is None:
                raise
            return error
        self.goal = goal
        self._machine.watch(self._link.pid, self._link.uid)
        self._following.resume(planned, restored.entered)
        self._states.live(self.name, layout_id)
        self._manage("resumed after the daemon's restart")
        return None

    def _reserve_or_join(self, goal: Goal) -> None:
        """Check that the process can be managed, and reserve its budget or let it share the shared
        budget. Raises SentinelError."""
        if goal.terms is None:
            self._machine.require(self._link, goal.fast)
        else:
            self._machine.join(self._link, goal.terms)

    def change_terms(self, terms: Terms) -> None:
        """Share the shared budget on other terms from now on. Raises SentinelError."""
        assert self.goal is not None
        self._machine.join(self._link, terms)
        self.goal = replace(self.goal, terms=terms)
        self._states.changed_terms(self.name, self._saved())

    def change_goal(self, goal: Goal) -> None:
        """Set the goal of the plan that is about to be sent, and forget the plans made for the old
        goal."""
        before = self.goal
        assert before is not None
        self.goal = goal
        self._following.forget_shapes()
        if goal.policy != before.policy:
            self._sharing.stop()

    def reserve(self, budget_bytes: int) -> None:
        """Raise the reserved budget to budget_bytes. Raises SentinelError."""
        self._machine.budgets_of(self._link).reserve(self._link, budget_bytes)

    def settle(self) -> None:
        """Release the reserved memory beyond the live plan's budget, except memory that is still
        charged. Call this again until all of the excess is released."""
        self._sharing.settle(self._following)

    def release(self) -> None:
        """Release the budget or the share, and stop watching the process."""
        # All callbacks run, even if one of them fails; see Driver.end().
        with contextlib.ExitStack() as release:
            release.callback(self._sharing.stop)
            release.callback(self._machine.release_budget, self._link)
            release.callback(self._machine.unwatch, self._link.pid)

    # The share of the shared budget.

    def count_for_shares(self) -> None:
        """If the session shares the shared budget and its process runs steps, include the session
        in the division of the budget."""
        idle = self._lifecycle.state in (State.REGISTERED, State.ATTACHED)
        if self._machine.shared is not None and not idle:
            self._machine.shared.count(self._link)

    def take_share(self) -> Goal | None:
        """The goal for a plan that is about to be made from a new profile. If the session shares
        the shared budget, this reserves its share, or returns None while other sessions still hold
        that memory."""
        assert self.goal is not None
        if self.goal.terms is None:
            return self.goal
        share_bytes = self._sharing.take(self._following)
        if share_bytes is None:
            self._lifecycle.explain(
                "its share of the shared budget is still used by other sessions"
            )
            return None
        goal = self.goal.with_share(share_bytes)
        if goal != self.goal:
            # The plans kept for other shapes were made for the old share. Other sessions may soon
            # use the memory that these plans need.
            self._following.forget_shapes()
        self.goal = goal
        return goal

    def resized_goal(self) -> Goal | None:
        """The goal with the session's new share of the shared budget, which is now reserved; None:
        keep the live plan."""
        if self.goal is None or self.goal.terms is None:
            return None
        share_bytes = self._sharing.resize(self._following, self.goal.policy)
        return None if share_bytes is None else self.goal.with_share(share_bytes)

    def share_failed(self, share_bytes: int) -> None:
        """Record that no plan could be made for a share."""
        self._sharing.failed(share_bytes)

    # The plans.

    def send(self, planned: Planned, what: str, why: str) -> None:
        """Begin to enter a plan. If another plan is live, it is followed until the process takes
        the new layout.

        what: see Following.prepare(). why: the status reason. Raises EOFError or SentinelError.
        SentinelError is raised, for example, if other sessions have reserved the budget since the
        plan was made."""
        self.reserve(planned.budget_bytes)
        self._layout_id = self._following.prepare(planned, what)
        # Save the plan before sending it: after a restart, the daemon needs the plan of any layout
        # that may be live.
        self._states.entering(self.name, self._saved(), self._layout_id, planned)
        self._following.send()
        self._lifecycle.enter(State.ENTERING, why)

    def enter(self) -> None:
        """If the layout that was sent is live, begin to follow its plan."""
        live = self._following.enter()
        if live is None:
            if self._following.overdue():
                self._lifecycle.explain(OVERDUE)
            return
        self._link.set_flags(off=protocol.Flag.RECORD | protocol.Flag.NO_STALLS)
        self._states.live(self.name, self._layout_id)
        self.settle()
        planned, goal = self._following.planned, self.goal
        if planned and goal and planned.plan.policy != goal.policy:
            live += f"; {planned.plan.policy} made it, because {goal.policy} failed"
        self._manage(live)

    def _manage(self, why: str) -> None:
        self._lifecycle.enter(State.MANAGED, why)
        log.info("process %d is managed: %s", self._link.pid, why, extra=about(LogEvent.MANAGED))

    # The state files.

    def save(self) -> None:
        """Save the session without a plan."""
        self._states.attached(self.name, self._saved())

    def restored(self, layout_id: int) -> Restored | None:
        """The session that an earlier daemon saved; see StateFiles.load()."""
        return self._states.load(self.name, layout_id)

    def is_saved(self) -> bool:
        """Whether the next daemon would resume the session or attach the process again."""
        return self._states.has(self.name)

    def forget(self) -> None:
        """Remove the state files."""
        self._states.forget(self.name)

    def prune(self) -> None:
        """Remove the state files of all processes that no longer exist."""
        self._states.prune()

    def _saved(self) -> Saved:
        assert self.goal is not None
        return to_save(self._machine, self.goal, self.rule)
