# SPDX-License-Identifier: Apache-2.0
"""One simulated training run: its steps before the plan, and its steps under the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from sentineld.model.energy import EnergyModel
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.first_touch import first_touch_plan
from sentineld.plan.policy import Hardware, Policy, Reactor, fast_pages
from sentineld.simulate.access_feed import AccessFeed
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.replay import Replay, Step
from sentineld.simulate.script import scripts
from sentineld.simulate.world import Counts, World

WARM_UP_STEPS = 2
PROFILE_STEPS = 3
"""Two steps with equal allocations, then the step whose accesses are observed
(sentineld/session/work/profiling.py)."""


@dataclass(frozen=True)
class PolicyRun:
    """Steps under the policy."""

    settling: tuple[Step, ...]
    """Steps before the steady ones, except those of `trial`."""
    steady: tuple[Step, ...]
    """Steps over which the results are averaged."""
    repeats: bool
    """Whether all further steps would repeat the steady ones."""
    trial: tuple[Step, ...] = ()
    """Steps of the trials that decided at which boundaries the process stalls
    (plan/stall_trial.py)."""
    corrections: int = 0
    """Number of times that another plan replaced the live plan."""
    notes: tuple[str, ...] = ()
    """Texts that describe choices and corrections during the run."""

    @property
    def step_ns(self) -> float:
        """Mean time of a steady step."""
        return fmean(step.ns for step in self.steady)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps."""
        return (*self.trial, *self.settling, *self.steady)


@dataclass(frozen=True)
class Training:
    """The conditions of a simulated training run."""

    profile: Profile
    policy: Policy
    plan: Plan
    tiers: Tiers
    """The tiers that the policy assumes, without the disturbance."""
    budget_bytes: int
    disturbance: Disturbance
    steps_max: int
    energy: EnergyModel | None = None
    """The model with which Step.slow_joules is computed; None: it is not computed."""

    @property
    def page_ns(self) -> tuple[float, float]:
        """Times in ns to promote and to demote one page with the bandwidth that other processes
        leave unused."""
        timing, page = timing_of(self.tiers), self.profile.page_bytes
        left = 1 - self.disturbance.interference
        return timing.promote_ns_per_byte * page / left, timing.demote_ns_per_byte * page / left

    def replay(
        self, reactor: Reactor | None = None, at_boundary: Callable[[], None] | None = None
    ) -> Replay:
        """A replay of the plan in a new world. at_boundary: see Replay."""
        capacity_pages = fast_pages(self.policy, self.plan, self.profile.page_bytes)
        return self._replay(self.plan, capacity_pages, reactor, at_boundary)

    def by_first_touch(self) -> tuple[tuple[Step, ...], World]:
        """The steps before the plan, and the world after them."""
        plan = first_touch_plan(self.profile, self.budget_bytes)
        replay = self._replay(plan, self.budget_bytes // self.profile.page_bytes)
        replay.begin()
        factors = self.disturbance.steps(self.profile.stretch_count, 0)
        steps = tuple(replay.step(factors.next()) for _ in range(WARM_UP_STEPS + PROFILE_STEPS))
        return steps, replay.world

    def reacting(self, before: World, reactor: Reactor, words: str) -> PolicyRun:
        """Steps under a reactive policy. words: description of the reactor, for the notes."""
        replay = self.replay(reactor)
        replay.begin(before)
        # All runs of a policy's parameter sweep get the same noise. The reactor's internal state is
        # not part of World.state(), so repeating steps cannot be detected.
        factors = self.disturbance.steps(self.profile.stretch_count, 1)
        steps = tuple(replay.step(factors.next()) for _ in range(self.steps_max))
        half = len(steps) // 2
        return PolicyRun(steps[:half], steps[half:], False, notes=(words,) if words else ())

    def in_hardware(self, hardware: Hardware) -> PolicyRun:
        """One steady step of a hardware policy."""
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
        return PolicyRun((), (step,), True)

    def _replay(
        self,
        plan: Plan,
        capacity_pages: int | None,
        reactor: Reactor | None = None,
        at_boundary: Callable[[], None] | None = None,
    ) -> Replay:
        timing = timing_of(self.tiers)
        made = scripts(plan, self.profile, timing, self.energy)
        world = World(made.cells, capacity_pages, *self.page_ns, timing.paged)
        react = None
        if reactor is not None:
            react = AccessFeed(self.profile, made.cells, timing, world, reactor).passed
        return Replay(made, world, react, at_boundary)
