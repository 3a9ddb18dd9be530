# SPDX-License-Identifier: Apache-2.0
"""Begins a session: resumes that of an earlier daemon, or attaches the process if so configured."""

from __future__ import annotations

import logging

from sentineld.base.log_events import LogEvent, about
from sentineld.base.units import FastBudget
from sentineld.machine.machine import Machine
from sentineld.observe.matching import Candidate, matching_rule
from sentineld.observe.shim_link import ShimLink
from sentineld.session.driver import Driver
from sentineld.session.goals import saved_goal
from sentineld.session.lifecycle import State
from sentineld.session.state import Restored
from sentineld.session.welcome import welcome
from sentineld.session.work.planning import Goal

log = logging.getLogger(__name__)


class Resuming:
    """Begins one session, in the session's thread."""

    def __init__(self, link: ShimLink, machine: Machine, driver: Driver) -> None:
        self._link = link
        self._machine = machine
        self._driver = driver
        self._attachment = driver.attachment

    def begin(self) -> None:
        """Answer the hello. If an earlier daemon saved a session of this process, resume this
        session: follow its plan if the plan is still live and resumable (Saved.resumable()), else
        attach the process again. If no session can be restored, the configuration decides whether
        to attach the process; if it is not attached, it leaves the layout that it may still have.
        Raises the same errors as Driver.turn()."""
        layout_id = self._link.segment.words().layout_id
        name = self._attachment.name
        welcome(self._link, self._machine, name, has_layout=bool(layout_id))
        if self._link.hello.get("session") != name:
            # No daemon has welcomed this program before. If there are state files, they belong to
            # the program that the process ran before it called exec().
            self._attachment.forget()
        restored = self._attachment.restored(layout_id)
        if restored is not None:
            self._resume(restored, layout_id)
            return
        self._attach_by_rule()
        if layout_id and self._driver.lifecycle.state is State.REGISTERED:
            self._leave_layout()

    def _resume(self, restored: Restored, layout_id: int) -> None:
        saved, machine = restored.saved, self._machine
        self._attachment.rule = saved.rule
        goal = saved_goal(machine, saved)
        substrate, nodes = machine.substrate, machine.nodes()
        resumable = saved.resumable(substrate.emulated, substrate.paged, nodes)
        if restored.planned is None or not resumable:
            self._attach_again(goal)
            return
        self._driver.require_own()
        error = self._attachment.resume(goal, restored, layout_id)
        if error is not None:
            self._attach_again(goal, f": {error.message}")

    def _attach_again(self, goal: Goal, why: str = "") -> None:
        self._driver.attach_to(goal)
        self._driver.lifecycle.explain(f"attached again after the daemon's restart{why}")

    def _leave_layout(self) -> None:
        """Make the process leave the layout of a plan whose state is missing or damaged: no mover
        would ever follow this plan."""
        self._driver.leave_layout()
        lifecycle, reason = self._driver.lifecycle, "an earlier daemon's plan, whose state is lost"
        lifecycle.explain(f"{lifecycle.status.reason}; the process leaves {reason}")
        log.warning(
            "process %d is not managed: it leaves %s",
            self._link.pid,
            reason,
            extra=about(LogEvent.NOT_MANAGED),
        )

    def _attach_by_rule(self) -> None:
        """Attach the process if the configuration says so."""
        config, driver = self._machine.config, self._driver
        rule = matching_rule(config.attach, Candidate(self._link.pid, self._link.uid))
        if rule is None:
            if config.auto_attach:
                driver.attach(None, None)
        elif rule.manage:
            self._attachment.rule = rule.origin
            # attach() checks that the process has not exited. If it has not, its PID was not
            # reused, so matching_rule() has examined this process and no other.
            driver.attach(FastBudget.parse(rule.fast) if rule.fast else None, rule.policy or None)
        else:
            driver.lifecycle.explain(f"left alone by {rule.origin}")
