# SPDX-License-Identifier: Apache-2.0
"""A training from its first step to its steady state under one policy, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from sentineld.errors import SentinelError
from sentineld.plan.check import verify
from sentineld.plan.items import Floats
from sentineld.plan.model import Plan
from sentineld.plan.policy import Policy
from sentineld.plan.registry import policy as policy_by_name
from sentineld.profile.model import Profile
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.script import scripts
from sentineld.simulate.world import World
from sentineld.tiers import Tiers
from sentineld.timing import timing_of

WARM_UP_STEPS = 2
PROFILE_STEPS = 3
"""Two that allocate alike and the one whose accesses are seen (sentineld/profiling.py)."""

STEPS_MAX = 200
"""Steps under the plan: enough for any plan of ours to repeat itself."""

NOISE_MIN = 0.1
"""No stretch takes less than this part of its time, however it is disturbed."""


@dataclass(frozen=True)
class Disturbance:
    """noise: standard deviation of each stretch's all-fast time, as a part of it, step by step
    anew.
    interference: the part of the migration bandwidth that others take, unforeseen by the plan."""

    noise: float = 0.0
    interference: float = 0.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= 2 or not 0 <= self.interference < 1:
            raise SentinelError(
                "usage",
                f"noise {self.noise:g} and interference {self.interference:g}",
                "give a noise from 0 to 2 and an interference from 0 to less than 1",
            )


@dataclass(frozen=True)
class Outcome:
    """Times in seconds; of one steady step unless said otherwise. late_moves, bytes: means where
    steps differ. phases: (name, steps, seconds of all of them), in order. peak_fast_bytes: in any
    step under the plan. steps: how many were simulated under the plan; repeats: whether they then
    go on so for ever."""

    policy: str
    kind: str
    budget_bytes: int
    step_seconds: float
    fast_only_seconds: float
    slow_only_seconds: float
    plan_seconds: float
    stall_seconds: float
    bytes_promoted: float
    bytes_demoted: float
    late_moves: float
    peak_fast_bytes: int
    steps: int
    repeats: bool
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
) -> Outcome:
    """Train under the policy.

    First-touch steps come first, as many as the daemon needs to know the step;
    then the plan is made, and carried out until the steps repeat themselves or
    steps_max have passed. Raises SentinelError for a budget that the policy can't
    keep, and whatever else plan() raises.
    """
    _check(profile, budget_bytes)
    began_s = time.perf_counter()
    plan = policy.plan(profile, tiers, budget_bytes)
    plan_s = time.perf_counter() - began_s
    verify(plan, profile, budget_bytes if policy.charges_budget else None)
    disturbance = disturbance or Disturbance()
    random = np.random.default_rng(disturbance.seed)
    page_ns = timing_of(tiers).move_ns_per_byte * profile.page_bytes
    page_ns /= 1 - disturbance.interference

    before = _world_of(policy_by_name("first-touch"), profile, tiers, budget_bytes, page_ns)
    before.begin()
    early = [
        before.step(_factors(profile, disturbance, random))
        for _ in range(WARM_UP_STEPS + PROFILE_STEPS)
    ]
    managed = _world_of(policy, profile, tiers, budget_bytes, page_ns, plan)
    managed.begin(before.world)
    steps: list[Step] = []
    peak_pages = managed.world.fast_pages
    seen: dict[bytes, int] = {}
    first = None
    while len(steps) < steps_max:
        if not disturbance.noise:
            state = managed.world.state()
            first = seen.setdefault(state, len(steps))
            if first < len(steps):
                break
            first = None
        steps.append(managed.step(_factors(profile, disturbance, random)))
        peak_pages = max(peak_pages, steps[-1].counts.peak_pages)
    steady = steps[len(steps) // 2 if first is None else first :]
    settling = len(steps) - len(steady)
    timing = timing_of(tiers)
    return Outcome(
        policy=plan.policy,
        kind="software",
        budget_bytes=budget_bytes,
        step_seconds=fmean(step.ns for step in steady) / 1e9,
        fast_only_seconds=float(profile.stretches["time_ns"].sum()) / 1e9,
        slow_only_seconds=float(
            timing.stretch_ns(profile, np.ones(len(profile.accesses))).sum() / 1e9
        ),
        plan_seconds=plan_s,
        stall_seconds=fmean(step.counts.stall_ns for step in steady) / 1e9,
        bytes_promoted=fmean(s.counts.promoted_pages for s in steady) * profile.page_bytes,
        bytes_demoted=fmean(s.counts.demoted_pages for s in steady) * profile.page_bytes,
        late_moves=fmean(s.counts.late_moves for s in steady),
        peak_fast_bytes=peak_pages * profile.page_bytes,
        steps=len(steps),
        repeats=first is not None,
        phases=(
            _phase("warm-up", early[:WARM_UP_STEPS]),
            _phase("profile", early[WARM_UP_STEPS:]),
            _phase("settling", steps[:settling]),
            _phase("steady", steady),
        ),
        predicted_seconds=plan.predicted.step_ns / 1e9,
        notes=plan.notes,
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


def _world_of(
    policy: Policy,
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    page_ns: float,
    plan: Plan | None = None,
) -> Replay:
    plan = plan or policy.plan(profile, tiers, budget_bytes)
    # A layout that keeps to no budget and asks for fast memory is there to say what no limit would
    # do.
    endless = not policy.charges_budget and plan.layout.heap_tier == 0
    made = scripts(plan, profile, timing_of(tiers))
    capacity = None if endless else budget_bytes // profile.page_bytes
    return Replay(made, World(made.cells, capacity, page_ns))


def _factors(
    profile: Profile, disturbance: Disturbance, random: np.random.Generator
) -> Floats | None:
    if not disturbance.noise:
        return None
    drawn = random.normal(1.0, disturbance.noise, profile.stretch_count)
    factors: Floats = np.maximum(drawn, NOISE_MIN)
    return factors


def _phase(name: str, steps: Sequence[Step]) -> tuple[str, int, float]:
    return name, len(steps), sum(step.ns for step in steps) / 1e9
