# SPDX-License-Identifier: Apache-2.0
"""Simulate a training run under one policy, from the first step to the steady state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.energy import energy_of
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.check import verify
from sentineld.plan.placement import planned
from sentineld.plan.policy import Hardware, Policy, Reactive, Rewriting, Rewritten
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.energy import fast_only_joules, step_joules
from sentineld.simulate.loop import ClosedLoop
from sentineld.simulate.replay import Step
from sentineld.simulate.training import WARM_UP_STEPS, PolicyRun, Training
from sentineld.simulate.world import World

STEPS_MAX = 200
"""Limit on the number of steps under plans, not counting steps in which stalls are tried (loop.py).
Without noise, steps under sentineld's policies repeat before this limit is reached."""

PLANNING_S = 1.0
"""Assumed time to make a corrected plan; steps continue meanwhile. Policy `auto` usually needs
less."""

STALLED_SHARE = 0.005
"""A step that waits for moves for more than this share of its time is a stalled step."""


@dataclass(frozen=True)
class Outcome:
    """The result of a simulated training run.

    "A step" in the descriptions below is a steady step: one of the steps that repeat or, if none
    repeat, one of the second half of the steps (loop.py). If the steady steps differ, the values
    are means over all steady steps.
    """

    policy: str
    kind: str
    """Whether software or hardware moves the pages: "software" or "hardware"."""
    budget_bytes: int
    step_seconds: float
    """Time of a step."""
    fast_only_seconds: float
    """Time of a step if all memory were fast."""
    slow_only_seconds: float
    """Time of a step if all memory were slow."""
    plan_seconds: float
    """Time taken to make the plan; 0 if simulate() was called without a clock."""
    stall_seconds: float
    """Time that a step waits: at barriers or, on paged tiers, for free frames."""
    birth_seconds: float
    """Time that page births in the arena take in a step."""
    bytes_promoted: float
    """Bytes promoted in a step."""
    bytes_demoted: float
    """Bytes demoted in a step."""
    late_moves: float
    """Number of late moves in a step."""
    peak_fast_bytes: int
    """Maximum number of fast bytes in use in any step under a plan."""
    steps: int
    """Number of steps simulated under plans."""
    repeats: bool
    """Whether the steady steps would repeat endlessly."""
    stalled_steps: int
    """Number of stalled steps under plans; see STALLED_SHARE."""
    corrections: int
    """Number of times that another plan replaced the live plan."""
    phases: tuple[tuple[str, int, float], ...]
    """(name, number of steps, total seconds) of each phase, in order."""
    predicted_seconds: float
    """Time of a step as the policy predicted it."""
    joules: float | None
    """Energy of a step by the energy model (model/energy.py); None: simulate() was called without
    the number of threads."""
    fast_only_joules: float | None
    """Energy of a step if all memory were fast; None as for `joules`."""
    notes: tuple[str, ...] = field(default=())
    """Texts that describe the policy's choices and the corrections in the simulation."""

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, with bytes and moves rounded to whole numbers."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name in ("bytes_promoted", "bytes_demoted", "late_moves"):
            values[name] = round(values[name])
        values["phases"] = [
            {"phase": name, "steps": steps, "seconds": seconds}
            for name, steps, seconds in self.phases
        ]
        values["notes"] = list(self.notes)
        return values


def simulate(
    profile: Profile,
    policy: Policy,
    tiers: Tiers,
    budget_bytes: int,
    disturbance: Disturbance | None = None,
    steps_max: int = STEPS_MAX,
    *,
    plan: Plan | None = None,
    planning_s: float | None = PLANNING_S,
    clock: Callable[[], float] | None = None,
    threads: int | None = None,
) -> Outcome:
    """Simulate a training run under the policy.

    The run begins with first-touch steps, as many as the daemon needs for warm-up and profiling.
    Then the plan is made and followed until the steps repeat or steps_max steps have passed. A
    rewriting policy first changes the step, unless `plan` is given. If the plan's assumptions do
    not hold, the plan is corrected as in the daemon. A reactive policy runs once for each value in
    its parameter sweep; the fastest run is the result.

    plan: a plan that the policy has already made; None: make one.
    planning_s: assumed time to make a corrected plan; None: never correct the plan.
    clock: function that returns seconds, for Outcome.plan_seconds.
    threads: number of threads that compute a step, for Outcome.joules; None: unknown.

    Raises SentinelError if the budget is less than a page, the profile has no accesses or no times,
    or the plan is invalid or exceeds the budget. Any error of policy.plan() is passed on.
    """
    _check(profile, budget_bytes)
    began_s = clock() if clock is not None else 0.0
    step = Rewritten(profile, ())
    if plan is None:
        if isinstance(policy, Rewriting):
            step = policy.rewritten(profile, tiers, budget_bytes)
        plan = planned(policy, step.profile, tiers, budget_bytes)
    plan_s = clock() - began_s if clock is not None else 0.0
    verify(plan, step.profile, budget_bytes if policy.charges_budget else None)
    training = Training(
        step.profile,
        policy,
        plan,
        tiers,
        budget_bytes,
        disturbance or Disturbance(),
        steps_max,
        energy_of(tiers) if threads is not None else None,
    )
    unchanged = replace(training, profile=profile)
    early, before = unchanged.by_first_touch()
    passed = _run_policy(training, before, planning_s)
    passed = replace(passed, notes=(*step.notes, *passed.notes))
    return _outcome(training, unchanged, early, passed, plan_s, threads)


def _run_policy(training: Training, before: World, planning_s: float | None) -> PolicyRun:
    """Simulate the steps under the policy. before: the world after the first-touch steps."""
    policy = training.policy
    if isinstance(policy, Hardware):
        return training.in_hardware(policy)
    if isinstance(policy, Reactive):
        reactors = policy.reactors(training.profile)
        tried = [training.reacting(before, reactor, words) for words, reactor in reactors]
        return min(tried, key=lambda one: one.step_ns)
    planning_ns = None if planning_s is None else planning_s * 1e9
    return ClosedLoop(training, before, planning_ns).run()


def _outcome(
    training: Training,
    unchanged: Training,
    early: Sequence[Step],
    passed: PolicyRun,
    plan_s: float,
    threads: int | None,
) -> Outcome:
    """Summarise a run. unchanged: the training with the step as it was before a rewriting policy
    changed it."""
    plan, profile, steady = training.plan, training.profile, passed.steady
    timing, page = timing_of(training.tiers), profile.page_bytes
    fast_s, slow_s = _extremes_s(unchanged)
    joules = fast_joules = None
    if training.energy is not None and threads is not None:
        joules = fmean(step_joules(step, profile, training.energy, threads) for step in steady)
        fast_joules = fast_only_joules(fast_s, unchanged.profile, training.energy, threads)
    return Outcome(
        policy=plan.policy,
        kind="hardware" if isinstance(training.policy, Hardware) else "software",
        budget_bytes=training.budget_bytes,
        step_seconds=passed.step_ns / 1e9,
        fast_only_seconds=fast_s,
        slow_only_seconds=slow_s,
        plan_seconds=plan_s,
        stall_seconds=fmean(step.counts.stall_ns for step in steady) / 1e9,
        birth_seconds=fmean(step.counts.born_pages for step in steady)
        * timing.birth_ns_per_byte
        * page
        / 1e9,
        bytes_promoted=fmean(step.counts.promoted_pages for step in steady) * page,
        bytes_demoted=fmean(step.counts.demoted_pages for step in steady) * page,
        late_moves=fmean(step.counts.late_moves for step in steady),
        peak_fast_bytes=max(step.counts.peak_pages for step in passed.steps) * page,
        steps=len(passed.steps),
        repeats=passed.repeats,
        stalled_steps=sum(step.counts.stall_ns > STALLED_SHARE * step.ns for step in passed.steps),
        corrections=passed.corrections,
        phases=(
            _phase("warm-up", early[:WARM_UP_STEPS]),
            _phase("profile", early[WARM_UP_STEPS:]),
            _phase("trial", passed.trial),
            _phase("settling", passed.settling),
            _phase("steady", steady),
        ),
        predicted_seconds=plan.predicted.step_ns / 1e9,
        joules=joules,
        fast_only_joules=fast_joules,
        notes=(*plan.notes, *passed.notes),
    )


def _extremes_s(training: Training) -> tuple[float, float]:
    """Seconds of a step with all memory fast, and with all memory slow."""
    profile, disturbance = training.profile, training.disturbance
    slow_ns = timing_of(training.tiers).stretch_ns(profile, np.ones(len(profile.accesses)))
    fast_ns = profile.stretches["time_ns"].astype(np.float64)
    extra_ns = float((slow_ns - fast_ns).sum())
    if disturbance.skew:
        fast_ns = fast_ns * disturbance.skew_factors(profile.stretch_count)
    return float(fast_ns.sum()) / 1e9, (float(fast_ns.sum()) + extra_ns) / 1e9


def require_accesses(profile: Profile) -> None:
    """Raise SentinelError if the profile has no accesses or no times, so that no step can be
    simulated."""
    if not len(profile.accesses) or not profile.stretches["time_ns"].any():
        raise SentinelError(
            "failed", "the trace has no accesses or no stretch times", "record another trace"
        )


def _check(profile: Profile, budget_bytes: int) -> None:
    if budget_bytes < profile.page_bytes:
        raise SentinelError(
            "usage",
            f"a budget of {budget_bytes} bytes is less than a page",
            f"give a share of the peak such as 20%, or at least {profile.page_bytes} bytes",
        )
    require_accesses(profile)


def _phase(name: str, steps: Sequence[Step]) -> tuple[str, int, float]:
    return name, len(steps), sum(step.ns for step in steps) / 1e9
