# SPDX-License-Identifier: Apache-2.0
"""Simulate the steps of a training run under plans, up to a limit or until the steps repeat.

Plans are corrected as in the daemon (plan/correct.py): steps continue under the old plan while the
new plan is made, and the training switches plans between two steps. A plan can have promotions
that are late by plan. Trials (plan/stall_trial.py) decide at which deadlines of these promotions
the process stalls. A step during which trials remain does not count as steady.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.check import verify
from sentineld.plan.correct import WINDOW_STEPS, Correction, Corrector, Progress
from sentineld.plan.placement import planned
from sentineld.plan.policy import Policy
from sentineld.plan.spare import SPARE_SHARE, Spare, measures_moves, with_share
from sentineld.plan.stall_trial import Decisions
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.training import PolicyRun, Training
from sentineld.simulate.world import World

COMPARED_STEPS = 20
"""Maximum number of steps simulated per plan to compare the live plan with a new one."""
GAIN_MIN = 0.002
"""A new plan replaces the live plan only if it saves more than this share of the step's time."""

SPARE_TRIED_SHARES = (0.75, 0.65, 0.55)
"""Shares of the migration bandwidth, tried in this order until the spare plan is faster than the
live plan. The spare plan is used only if the measured bandwidth is at most the last tried share of
the migration bandwidth."""

Steps = tuple[Step, ...]


@dataclass(frozen=True)
class _Waiting:
    """A correction that has not taken effect yet."""

    correction: Correction
    ready_ns: float
    """Value of Progress.time_ns at which the corrected plan is ready."""
    spare: Plan | None = None
    """The spare plan, if it is used for the correction; None: make a new plan."""


class ClosedLoop:
    """Simulates the steps under a policy's plan, including corrections of the plan."""

    def __init__(self, training: Training, before: World, planning_ns: float | None) -> None:
        """planning_ns: time to make a corrected plan; None: never correct the plan."""
        self._training, self._planning_ns = training, planning_ns
        self._corrects = planning_ns is not None and training.disturbance.disturbs
        self._factors = training.disturbance.steps(training.profile.stretch_count, 1)
        self._steps: list[Step] = []
        self._tried: list[bool] = []  # for each step, whether trials remained when it began
        self._notes: list[str] = []
        self._corrections = 0
        self._corrector = Corrector(training.tiers)
        self._passed = Progress()
        self._times: deque[Floats] = deque(maxlen=WINDOW_STEPS)
        self._waiting: _Waiting | None = None
        # Profile and tiers that the live plan assumes. The simulated world uses the training's own
        # profile and tiers.
        self._assumed = training.profile, training.tiers
        self._has_spare = True
        self._enter(training.plan, before)

    def run(self) -> PolicyRun:
        """Simulate until the steps repeat, or for steps_max steps. The steps in which stalls are
        tried do not count towards this limit."""
        steady, repeats = self._settle()
        kept = set(map(id, steady))
        before = [
            (step, tried)
            for step, tried in zip(self._steps, self._tried, strict=True)
            if id(step) not in kept
        ]
        settling = tuple(step for step, tried in before if not tried)
        trial = tuple(step for step, tried in before if tried)
        decisions = self._replay.trial.decisions
        if decisions != Decisions(0, 0, 0):
            self._notes.append(
                f"trials: the process stalls at {decisions.stall} of the boundaries with late"
                f" promotions and does not stall at {decisions.leave}"
            )
        notes = tuple(self._notes)
        return PolicyRun(settling, steady, repeats, trial, self._corrections, notes)

    def _enter(self, plan: Plan, before: World) -> None:
        self._plan = plan
        training = replace(self._training, plan=plan)
        self._replay: Replay = training.replay(at_boundary=self._look if self._corrects else None)
        self._replay.begin(before)
        self._begun_ns = self._replay.world.now_ns
        # Forget the states of earlier steps: repetition is detected only among steps under the same
        # plan, after its trials.
        self._seen: dict[bytes, int] = {}
        self._times.clear()
        self._corrector.entered(plan, *self._assumed, self._passed)

    def _settle(self) -> tuple[Steps, bool]:
        """Simulate until the steps repeat, or to the limit (see run()). Return the steady steps
        and whether they repeat."""
        training = self._training
        while len(self._steps) - sum(self._tried) < training.steps_max:
            count = len(self._steps)
            if self._replay.trial.undecided:
                self._seen.clear()
            elif not training.disturbance.noise and self._waiting is None:
                before = self._seen.setdefault(self._replay.world.state(), count)
                if before < count:
                    if not (self._corrects and self._corrector.undecided):
                        return tuple(self._steps[before:]), True
                    self._seen[self._replay.world.state()] = count
            self._pass_step()
        later = [step for step, tried in zip(self._steps, self._tried, strict=True) if not tried]
        return tuple(later[len(later) // 2 :]), False

    def _pass_step(self) -> None:
        world = self._replay.world
        begun_ns = world.now_ns
        self._tried.append(self._replay.trial.undecided)
        step = self._replay.step(self._factors.next())
        self._steps.append(step)
        self._times.append(step.times_ns)
        self._passed = self._progress(world.now_ns - begun_ns, len(self._steps))
        self._begun_ns = world.now_ns
        if self._waiting is not None and self._passed.time_ns >= self._waiting.ready_ns:
            waiting, self._waiting = self._waiting, None
            self._correct(waiting)

    def _progress(self, step_ns: float, steps: int) -> Progress:
        """The sum of self._passed and the counts of the latest step. step_ns: time since that step
        began. steps: number of complete steps."""
        counts, passed = self._replay.world.counts, self._passed
        moved = (counts.promoted_pages + counts.demoted_pages) * self._training.profile.page_bytes
        return Progress(
            steps,
            passed.time_ns + step_ns,
            passed.moved_bytes + moved,
            passed.busy_ns + counts.busy_ns,
            passed.stall_ns + counts.stall_ns,
            passed.late_moves + counts.late_moves,
        )

    def _look(self) -> None:
        """Begin a correction if the plan's assumptions do not hold. Called at each boundary."""
        if self._waiting is not None or not self._corrects:
            return
        now = self._progress(self._replay.world.now_ns - self._begun_ns, len(self._steps))
        correction = self._corrector.look(now)
        if correction is None and len(self._times) == WINDOW_STEPS and self._corrector.needs_times:
            correction = self._corrector.timed(np.array(self._times))
        if correction is None or self._planning_ns is None:
            return
        spare = self._spare if self._has_spare else None
        answer = spare.answer(correction) if spare is not None else None
        if spare is not None and answer is not None:
            self._waiting = _Waiting(answer, now.time_ns, spare.plan)
        else:
            self._waiting = _Waiting(correction, now.time_ns + self._planning_ns)

    @cached_property
    def _spare(self) -> Spare | None:
        """The spare plan. It is made on demand, but the simulation assumes that it was made in
        advance."""
        one = self._training
        return spare_plan(one.policy, one.profile, one.tiers, one.budget_bytes, one.plan)

    def _correct(self, waiting: _Waiting) -> None:
        if waiting.spare is not None:
            self._enter_corrected(waiting.spare, waiting.correction, "switched to the spare plan")
        else:
            self._plan_again(waiting.correction)

    def _plan_again(self, correction: Correction) -> None:
        training = self._training
        try:
            plan = plan_again(
                training.policy,
                correction.profile,
                correction.tiers,
                training.budget_bytes,
                self._plan,
            )
        except SentinelError as error:
            self._corrector.kept()
            self._notes.append(f"{correction.text}, but replanning failed: {error.message}")
            return
        if plan is None:
            self._corrector.kept()
            self._notes.append(f"{correction.text}, and no other plan is faster")
            return
        self._enter_corrected(plan, correction, "planned again")

    def _enter_corrected(self, plan: Plan, correction: Correction, what: str) -> None:
        self._assumed = correction.profile, correction.tiers
        self._has_spare = False
        self._corrector.left()
        self._corrections += 1
        self._notes.append(f"{what} after step {len(self._steps)}: {correction.text}")
        self._enter(plan, self._replay.world)


def _planned(policy: Policy, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
    plan = planned(policy, profile, tiers, budget_bytes)
    verify(plan, profile, budget_bytes if policy.charges_budget else None)
    return plan


def plan_again(
    policy: Policy, profile: Profile, tiers: Tiers, budget_bytes: int, live: Plan
) -> Plan | None:
    """Plan again. Return None unless the new plan's steps are faster than the live plan's by more
    than GAIN_MIN.

    Raises SentinelError if the policy cannot make a plan.
    """
    plan = _planned(policy, profile, tiers, budget_bytes)
    return plan if _is_faster(plan, live, policy, profile, tiers) else None


def spare_plan(
    policy: Policy, profile: Profile, tiers: Tiers, budget_bytes: int, live: Plan
) -> Spare | None:
    """Make the spare plan, which is for SPARE_SHARE of the tiers' migration bandwidth.

    Returns None if a spare plan can never be entered (see measures_moves()), if the policy cannot
    make the plan, or if the plan is not faster than the live plan at any of SPARE_TRIED_SHARES.
    """
    if not measures_moves(live, tiers):
        return None
    fewer = with_share(tiers, SPARE_SHARE)
    try:
        plan = _planned(policy, profile, fewer, budget_bytes)
    except SentinelError:
        return None
    for share in SPARE_TRIED_SHARES:
        found = with_share(tiers, share)
        if _is_faster(plan, live, policy, profile, found):
            return Spare(plan, fewer, found.migration_bytes_per_s)
    return None


def _is_faster(plan: Plan, live: Plan, policy: Policy, profile: Profile, tiers: Tiers) -> bool:
    """Whether a plan's steps are faster than the live plan's by more than GAIN_MIN."""

    def step_ns(one: Plan) -> float:
        training = Training(
            profile, policy, one, tiers, one.budget_bytes, Disturbance(), COMPARED_STEPS
        )
        _, before = training.by_first_touch()
        return ClosedLoop(training, before, None).run().step_ns

    return step_ns(plan) < (1 - GAIN_MIN) * step_ns(live)
