# SPDX-License-Identifier: Apache-2.0
"""One training in virtual time: its first steps, and those under a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.policy import Hardware, Policy, Reactor, fast_pages
from sentineld.policies.registry import policy as policy_by_name
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.script import scripts
from sentineld.simulate.watch import Watch
from sentineld.simulate.world import Counts, World

WARM_UP_STEPS = 2
PROFILE_STEPS = 3
"""Two that allocate alike and one whose accesses are sampled (session/work/profiling.py)."""


@dataclass(frozen=True)
class Passed:
    """Steps under plans. steady: those that the answer is the mean of, and repeats: whether they go
    on so for ever. settling: those before; trial: those that tried out what was not kept. notes:
    what was chosen or corrected on the way; corrections: how often."""

    settling: tuple[Step, ...]
    steady: tuple[Step, ...]
    repeats: bool
    trial: tuple[Step, ...] = ()
    corrections: int = 0
    notes: tuple[str, ...] = ()

    @property
    def step_ns(self) -> float:
        """The mean steady step."""
        return fmean(step.ns for step in self.steady)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of them."""
        return (*self.settling, *self.trial, *self.steady)


@dataclass(frozen=True)
class Training:
    """What is simulated. tiers: as they are promised to the policy."""

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

    def replay(
        self, reactor: Reactor | None = None, looker: Callable[[], None] | None = None
    ) -> Replay:
        """The plan in a new world."""
        made = scripts(self.plan, self.profile, timing_of(self.tiers))
        capacity = fast_pages(self.policy, self.plan, self.profile.page_bytes)
        world = World(made.cells, capacity, self.page_ns)
        if reactor is None:
            return Replay(made, world, looker=looker)
        return Replay(made, world, Watch(self.profile, made.cells, world, reactor).passed)

    def by_first_touch(self) -> tuple[tuple[Step, ...], World]:
        """The steps before the plan, and the world after them."""
        policy = policy_by_name("first-touch")
        plan = policy.plan(self.profile, self.tiers, self.budget_bytes)
        replay = replace(self, policy=policy, plan=plan).replay()
        replay.begin()
        factors = self.disturbance.steps(self.profile.stretch_count, 0)
        steps = tuple(replay.step(factors.next()) for _ in range(WARM_UP_STEPS + PROFILE_STEPS))
        return steps, replay.world

    def reacting(self, before: World, reactor: Reactor, words: str) -> Passed:
        """Steps with a reactive policy at work. words: which value of its sweep it is."""
        replay = self.replay(reactor)
        replay.begin(before)
        # Every value of a sweep meets the same noise. It remembers more than the world shows, so
        # that no step is known to repeat another.
        factors = self.disturbance.steps(self.profile.stretch_count, 1)
        steps = tuple(replay.step(factors.next()) for _ in range(self.steps_max))
        half = len(steps) // 2
        return Passed(steps[:half], steps[half:], False, notes=(words,) if words else ())

    def in_hardware(self, hardware: Hardware) -> Passed:
        """One step of what no plan decides."""
        page = self.profile.page_bytes
        found = hardware.steady_step(self.plan, self.profile, self.tiers, self.budget_bytes)
        times = self.profile.stretches["time_ns"].astype(np.float64)
        factors = self.disturbance.steps(self.profile.stretch_count, 1).next()
        if factors is not None:
            times = times * factors
        counts = Counts(
            promoted_pages=found.filled_bytes // page,
            demoted_pages=found.written_back_bytes // page,
            peak_pages=self.budget_bytes // page,
        )
        step = Step(float(times.sum()) + found.extra_ns, found.extra_ns, counts, times)
        return Passed((), (step,), True)
