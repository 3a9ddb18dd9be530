# SPDX-License-Identifier: Apache-2.0
"""A training from its first step to its steady state under one policy, in virtual time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from sentineld.errors import SentinelError
from sentineld.plan.check import verify
from sentineld.plan.items import Floats
from sentineld.plan.model import Plan
from sentineld.plan.policy import Hardware, Policy, Reactive, Reactor, fast_pages
from sentineld.plan.registry import policy as policy_by_name
from sentineld.profile.model import Profile
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.script import scripts
from sentineld.simulate.watch import Watch
from sentineld.simulate.world import Counts, World
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


@dataclass(frozen=True)
class _Passed:
    """Steps under a plan. first: from which on they repeat themselves, None: they don't. words:
    which value of a sweep it was."""

    steps: tuple[Step, ...]
    first: int | None
    words: str = ""

    @property
    def steady(self) -> tuple[Step, ...]:
        """Those that the answer is the mean of."""
        return self.steps[len(self.steps) // 2 if self.first is None else self.first :]

    @property
    def step_ns(self) -> float:
        """The mean steady step."""
        return fmean(step.ns for step in self.steady)


@dataclass(frozen=True)
class _Training:
    """What a simulation is about."""

    profile: Profile
    policy: Policy
    plan: Plan
    tiers: Tiers
    budget_bytes: int
    disturbance: Disturbance
    steps_max: int

    @property
    def page_ns(self) -> float:
        """What a page takes to move, with what others take of the bandwidth."""
        move_ns = timing_of(self.tiers).move_ns_per_byte * self.profile.page_bytes
        return move_ns / (1 - self.disturbance.interference)

    def replay(self, reactor: Reactor | None = None) -> Replay:
        """The plan in a new world."""
        made = scripts(self.plan, self.profile, timing_of(self.tiers))
        capacity = fast_pages(self.policy, self.plan, self.profile.page_bytes)
        world = World(made.cells, capacity, self.page_ns)
        if reactor is None:
            return Replay(made, world)
        return Replay(made, world, Watch(self.profile, made.cells, world, reactor).passed)

    def factors(self, random: np.random.Generator) -> Floats | None:
        """How long each stretch of a step takes, over its all-fast time."""
        if not self.disturbance.noise:
            return None
        drawn = random.normal(1.0, self.disturbance.noise, self.profile.stretch_count)
        factors: Floats = np.maximum(drawn, NOISE_MIN)
        return factors

    def by_first_touch(self) -> tuple[tuple[Step, ...], World]:
        """The steps before the plan, and the world after them."""
        policy = policy_by_name("first-touch")
        plan = policy.plan(self.profile, self.tiers, self.budget_bytes)
        replay = replace(self, policy=policy, plan=plan).replay()
        replay.begin()
        random = np.random.default_rng(self.disturbance.seed)
        steps = tuple(
            replay.step(self.factors(random)) for _ in range(WARM_UP_STEPS + PROFILE_STEPS)
        )
        return steps, replay.world

    def under_plan(self, before: World, reactor: Reactor | None, words: str) -> _Passed:
        """The steps after that, until they repeat themselves."""
        replay = self.replay(reactor)
        replay.begin(before)
        # Every value of a sweep meets the same noise.
        random = np.random.default_rng(self.disturbance.seed + 1)
        steps: list[Step] = []
        seen: dict[bytes, int] = {}
        while len(steps) < self.steps_max:
            # A reactor remembers more than the world shows.
            if not self.disturbance.noise and reactor is None:
                first = seen.setdefault(replay.world.state(), len(steps))
                if first < len(steps):
                    return _Passed(tuple(steps), first, words)
            steps.append(replay.step(self.factors(random)))
        return _Passed(tuple(steps), None, words)

    def in_hardware(self, hardware: Hardware) -> _Passed:
        """One step of what no plan decides."""
        page = self.profile.page_bytes
        found = hardware.steady_step(self.plan, self.profile, self.tiers, self.budget_bytes)
        random = np.random.default_rng(self.disturbance.seed + 1)
        times = self.profile.stretches["time_ns"].astype(np.float64)
        factors = self.factors(random)
        fast_ns = float(times.sum() if factors is None else (times * factors).sum())
        counts = Counts(
            promoted_pages=found.filled_bytes // page,
            demoted_pages=found.written_back_bytes // page,
            peak_pages=self.budget_bytes // page,
        )
        return _Passed((Step(fast_ns + found.extra_ns, found.extra_ns, counts),), 0)


def simulate(
    profile: Profile,
    policy: Policy,
    tiers: Tiers,
    budget_bytes: int,
    disturbance: Disturbance | None = None,
    steps_max: int = STEPS_MAX,
    plan: Plan | None = None,
) -> Outcome:
    """Train under the policy.

    First-touch steps come first, as many as the daemon needs to know the step;
    then the plan is made, and carried out until the steps repeat themselves or
    steps_max have passed. A reactive policy is tried with each value of its sweep, and the
    best one counts. plan: one that the policy has made before, to be taken instead. Raises
    SentinelError for a budget that the policy can't keep, and whatever else plan() raises.
    """
    _check(profile, budget_bytes)
    began_s = time.perf_counter()
    if plan is None:
        plan = policy.plan(profile, tiers, budget_bytes)
    plan_s = time.perf_counter() - began_s
    verify(plan, profile, budget_bytes if policy.charges_budget else None)
    training = _Training(
        profile, policy, plan, tiers, budget_bytes, disturbance or Disturbance(), steps_max
    )
    early, before = training.by_first_touch()
    if isinstance(policy, Hardware):
        passed = training.in_hardware(policy)
    elif isinstance(policy, Reactive):
        tried = [training.under_plan(before, r, words) for words, r in policy.reactors(profile)]
        passed = min(tried, key=lambda one: one.step_ns)
    else:
        passed = training.under_plan(before, None, "")
    steady, timing = passed.steady, timing_of(tiers)
    settling = passed.steps[: len(passed.steps) - len(steady)]
    page = profile.page_bytes
    all_slow = timing.stretch_ns(profile, np.ones(len(profile.accesses)))
    return Outcome(
        policy=plan.policy,
        kind="hardware" if isinstance(policy, Hardware) else "software",
        budget_bytes=budget_bytes,
        step_seconds=passed.step_ns / 1e9,
        fast_only_seconds=float(profile.stretches["time_ns"].sum()) / 1e9,
        slow_only_seconds=float(all_slow.sum()) / 1e9,
        plan_seconds=plan_s,
        stall_seconds=fmean(step.counts.stall_ns for step in steady) / 1e9,
        bytes_promoted=fmean(step.counts.promoted_pages for step in steady) * page,
        bytes_demoted=fmean(step.counts.demoted_pages for step in steady) * page,
        late_moves=fmean(step.counts.late_moves for step in steady),
        peak_fast_bytes=max(step.counts.peak_pages for step in passed.steps) * page,
        steps=len(passed.steps),
        repeats=passed.first is not None,
        phases=(
            _phase("warm-up", early[:WARM_UP_STEPS]),
            _phase("profile", early[WARM_UP_STEPS:]),
            _phase("settling", settling),
            _phase("steady", steady),
        ),
        predicted_seconds=plan.predicted.step_ns / 1e9,
        notes=(*plan.notes, *([passed.words] if passed.words else [])),
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
