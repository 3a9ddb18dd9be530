# SPDX-License-Identifier: Apache-2.0
"""Corrects a live plan. The measured bandwidth, stretch times and latency of faults are compared
with the assumed values. If they differ too much (plan/correct.py decides this) and the spare plan
suits the correction, the spare plan replaces the live plan. If the spare plan does not suit the
correction, or if there is no spare plan, another plan is made in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sentineld.base.background import Background
from sentineld.base.log_events import LogEvent, about
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.tiers import Tiers
from sentineld.observe.control_segment import ShimWords
from sentineld.observe.shim_link import ShimLink
from sentineld.plan.correct import WINDOW_STEPS, Correction, Corrector
from sentineld.plan.fault_latency import fault_latency_of
from sentineld.plan.timed import all_fast_ns, births_ns, planned_extra_ns, spent_ns
from sentineld.profile.steps import Step
from sentineld.session.live.managed import Managed
from sentineld.session.live.shapes import Planned

log = logging.getLogger(__name__)

PlanAgain = Callable[[Correction, int, Plan], Plan | None]
"""A function that plans again, given a correction, the budget in bytes for tensor pages, and the
live plan. Returns None if the new plan is not faster than the live plan; may raise
SentinelError."""


@dataclass(frozen=True)
class Corrected:
    """A plan to enter instead of the live one."""

    planned: Planned
    cause: str  # see Correction
    text: str  # the reason, for status and log


class _Job(NamedTuple):
    """A correction that is being planned."""

    correction: Correction
    making: Background[Plan | None]


class Correcting:
    """Corrects the live plans of one attach. All calls come from the session's thread. Other
    threads may read the attribute `tiers`, because it is only replaced as a whole."""

    def __init__(self, link: ShimLink, machine_tiers: Tiers, plan_again: PlanAgain) -> None:
        """machine_tiers: the tiers, with the figures of an otherwise idle machine."""
        self.tiers = machine_tiers
        """The tiers, with the figures that the live plan assumes."""
        self._link = link
        self._machine_tiers = machine_tiers
        self._plan_again = plan_again
        self._corrector = Corrector(machine_tiers)
        self._managed: Managed | None = None
        self._planned: Planned | None = None
        self._job: _Job | None = None
        self._spent: list[Floats] = []
        self._began: tuple[int, int] = 0, 0  # (step, total delay in ns) when recording began
        self.recording = False
        """Whether steps are recorded for a correction."""

    def entered(self, planned: Planned, managed: Managed, words: ShimWords) -> None:
        """Begin to check a plan that has just become live."""
        self.tiers = planned.assumed_of(self._machine_tiers)
        self._planned, self._managed, self._job = planned, managed, None
        self._spent, self.recording = [], False
        progress = managed.progress(words)
        self._corrector.entered(planned.plan, planned.profile, self.tiers, progress)

    def left(self) -> None:
        """Stop checking the plan, which is no longer live. Drop a correction that is being
        planned."""
        self._planned = self._managed = self._job = None
        self.recording = False

    def begin_recording(self) -> bool:
        """Begin to measure the times of steps if they are needed to decide on a correction. Returns
        whether measuring has begun with this call; if so, the caller must make the shim record
        steps."""
        if self.recording or self._managed is None or self._job is not None:
            return False
        self.recording = self._corrector.needs_times
        self._spent, self._began = [], self._owed()
        if self.recording and self._machine_tiers.paged:
            self._link.set_flags(on=protocol.Flag.NO_STALLS)
        return self.recording

    def stop_recording(self) -> None:
        """End the recording that begin_recording() began. This is called when a request begins, or
        is under way. Flag.RECORD stays set until the session clears it."""
        if self.recording:
            self._link.set_flags(off=protocol.Flag.NO_STALLS)
        self.recording = False

    def on_step(self, step: Step) -> None:
        """Handle a complete recorded step."""
        planned = self._planned
        if planned is None or not self.recording:
            return
        spent = spent_ns(planned.profile, step)
        if spent is None:
            return
        self._spent.append(spent)
        if len(self._spent) < WINDOW_STEPS:
            return
        self._link.set_flags(off=protocol.Flag.RECORD | protocol.Flag.NO_STALLS)
        self.recording = False
        extra_ns = self._extra_ns(planned)
        times = all_fast_ns(planned.plan, planned.profile, np.array(self._spent), extra_ns)
        correction = self._corrector.timed(times) if self._job is None else None
        if correction is not None:
            self._begin(planned, correction)

    def _owed(self) -> tuple[int, int]:
        residency = self._link.residency
        return self._link.segment.words().step, residency.owed_ns if residency else 0

    def _extra_ns(self, planned: Planned) -> Floats:
        """Planned time of slow accesses and births in each recorded stretch. On emulated tiers, the
        times of slow accesses are scaled so that their sum equals the mean delay per step that the
        shim computed during the recording (owed_ns). On paged tiers, the times of slow accesses are
        omitted, because the recorded times do not contain waits for pages."""
        made_ns = births_ns(planned.plan, planned.profile, self._machine_tiers)
        if self._machine_tiers.paged:
            return made_ns
        extra_ns = planned_extra_ns(planned.plan, planned.profile, self._machine_tiers)
        step, owed_ns = (
            now - before for now, before in zip(self._owed(), self._began, strict=True)
        )
        expected_ns = float(extra_ns.sum())
        if owed_ns and step and expected_ns:
            extra_ns = extra_ns * (owed_ns / step / expected_ns)
        return extra_ns + made_ns

    def look(self, words: ShimWords) -> Corrected | None:
        """Compare progress with the plan's assumptions; returns a corrected plan if there is one
        now."""
        planned, managed = self._planned, self._managed
        if planned is None or managed is None:
            return None
        correction = self._corrector.look(managed.progress(words))
        if self._job is not None:
            return self._finished(planned, self._job)
        if correction is None:
            return None
        spare = planned.spare
        answer = spare.answer(correction) if spare is not None else None
        if spare is None or answer is None:
            self._begin(planned, correction)
            return None
        log.info(
            "process %d: %s; entering the spare plan",
            self._link.pid,
            correction.text,
            extra=about(LogEvent.PLAN_WRONG),
        )
        return self._corrected(planned, answer, spare.plan, planned.plan_duration_s)

    def _begin(self, planned: Planned, correction: Correction) -> None:
        log.info(
            "process %d: %s; planning again",
            self._link.pid,
            correction.text,
            extra=about(LogEvent.PLAN_WRONG),
        )
        # PlanAgain takes the budget for tensor pages, which does not include unmanaged bytes.
        # plan.budget_bytes does not include them either.
        budget_bytes = planned.plan.budget_bytes
        self._job = _Job(
            correction,
            Background(
                "planning a correction",
                lambda: self._plan_again(correction, budget_bytes, planned.plan),
            ),
        )

    def _finished(self, planned: Planned, job: _Job) -> Corrected | None:
        making = job.making
        if not making.done():
            return None
        self._job = None
        if making.result is None:
            why = making.problem or "no other plan is predicted to be faster"
            log.info(
                "process %d keeps its plan: %s",
                self._link.pid,
                why,
                extra=about(LogEvent.PLAN_WRONG),
            )
            self._corrector.kept()
            return None
        return self._corrected(planned, job.correction, making.result, making.duration_s)

    def _corrected(
        self, planned: Planned, correction: Correction, plan: Plan, duration_s: float | None
    ) -> Corrected:
        self._corrector.left()
        corrected = replace(
            planned,
            profile=correction.profile,
            plan=plan,
            plan_duration_s=duration_s,
            migration_bytes_per_s=correction.tiers.migration_bytes_per_s,
            fault_latency_ns=fault_latency_of(correction.tiers),
            spare=None,
        )
        return Corrected(corrected, correction.cause, correction.text)


def correcting(link: ShimLink, machine: Machine) -> Correcting:
    """Make the Correcting object of an attached process. The machine must have tiers."""
    tiers, planners = machine.tiers, machine.planners
    assert tiers is not None, "attach requires tiers"

    def plan_again(correction: Correction, budget_bytes: int, live: Plan) -> Plan | None:
        return planners.plan_again(link.uid, correction, budget_bytes, live)

    return Correcting(link, tiers, plan_again)
