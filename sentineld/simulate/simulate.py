# SPDX-License-Identifier: Apache-2.0
"""A training from its first step to its steady state under one policy, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.check import verify
from sentineld.plan.policy import Hardware, Policy, Reactive
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.loop import ClosedLoop
from sentineld.simulate.replay import Step
from sentineld.simulate.training import WARM_UP_STEPS, Training

STEPS_MAX = 200
"""Steps under the plan: enough for any plan of ours to repeat itself."""

PLANNING_S = 1.0
"""What planning again is taken to take, while the steps go on; `auto` needs less for most."""

STALLED_SHARE = 0.005
"""A step that waits for less than this part of its time does not count as stalled."""


@dataclass(frozen=True)
class Outcome:
    """Times in seconds; of one steady step unless said otherwise. late_moves, bytes: means where
    steps differ. phases: (name, steps, seconds of all of them), in order. peak_fast_bytes: in any
    step under a plan. steps: how many were simulated under plans; repeats: whether they then go
    on so for ever. stalled_steps: those of them that waited for moves for long. corrections: how
    often another plan was made."""

    policy: str
    kind: str
    budget_bytes: int
    step_seconds: float
    fast_only_seconds: float
    slow_only_seconds: float
    plan_seconds: float
    stall_seconds: float
    birth_seconds: float
    bytes_promoted: float
    bytes_demoted: float
    late_moves: float
    peak_fast_bytes: int
    steps: int
    repeats: bool
    stalled_steps: int
    corrections: int
    phases: tuple[tuple[str, int, float], ...]
    predicted_seconds: float
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """As plain values; bytes and moves are whole numbers."""
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
    plan: Plan | None = None,
    planning_s: float | None = PLANNING_S,
) -> Outcome:
    """Train under the policy.

    First-touch steps come first, as many as the daemon needs to know the step;
    then the plan is made, and carried out until the steps repeat themselves or
    steps_max have passed. A reactive policy is tried with each value of its sweep, and the
    best one counts. plan: one that the policy has made before, to be taken instead. Where the
    plan's promises do not hold, another is made for what was seen, which takes planning_s; None:
    nobody plans again. Raises SentinelError for a budget that the policy can't keep, and whatever
    else plan() raises.
    """
    _check(profile, budget_bytes)
    began_s = time.perf_counter()
    if plan is None:
        plan = policy.plan(profile, tiers, budget_bytes)
    plan_s = time.perf_counter() - began_s
    verify(plan, profile, budget_bytes if policy.charges_budget else None)
    disturbance = disturbance or Disturbance()
    training = Training(profile, policy, plan, tiers, budget_bytes, disturbance, steps_max)
    early, before = training.by_first_touch()
    if isinstance(policy, Hardware):
        passed = training.in_hardware(policy)
    elif isinstance(policy, Reactive):
        tried = [training.reacting(before, r, words) for words, r in policy.reactors(profile)]
        passed = min(tried, key=lambda one: one.step_ns)
    else:
        planning_ns = None if planning_s is None else planning_s * 1e9
        passed = ClosedLoop(training, before, planning_ns).run()
    steady, timing = passed.steady, timing_of(tiers)
    page = profile.page_bytes
    slow_ns = float(timing.extra_ns(profile).sum())
    fast_ns = profile.stretches["time_ns"].astype(np.float64)
    if disturbance.skew:
        fast_ns = fast_ns * disturbance.paces(profile.stretch_count)
    return Outcome(
        policy=plan.policy,
        kind="hardware" if isinstance(policy, Hardware) else "software",
        budget_bytes=budget_bytes,
        step_seconds=passed.step_ns / 1e9,
        fast_only_seconds=float(fast_ns.sum()) / 1e9,
        slow_only_seconds=(float(fast_ns.sum()) + slow_ns) / 1e9,
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
            _phase("settling", passed.settling),
            _phase("trial", passed.trial),
            _phase("steady", steady),
        ),
        predicted_seconds=plan.predicted.step_ns / 1e9,
        notes=(*plan.notes, *passed.notes),
    )


def _check(profile: Profile, budget_bytes: int) -> None:
    if budget_bytes < profile.page_bytes:
        raise SentinelError(
            "usage",
            f"{budget_bytes} bytes of fast memory are less than a page",
            f"give a share of the peak such as 20%, or more than {profile.page_bytes} bytes",
        )
    if not len(profile.accesses) or not profile.stretches["time_ns"].any():
        raise SentinelError(
            "failed", "the trace holds no accesses, or no times", "record another one"
        )


def _phase(name: str, steps: Sequence[Step]) -> tuple[str, int, float]:
    return name, len(steps), sum(step.ns for step in steps) / 1e9
