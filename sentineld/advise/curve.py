# SPDX-License-Identifier: Apache-2.0
"""Curves of the step time as a function of the amount of fast memory, and their knees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sentineld.advise.machines import Machine
from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.policies.bounds.of_policy import bound_seconds_of
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate


@dataclass(frozen=True)
class Question:
    """The input of a simulation that yields one point of a curve."""

    machine: Machine
    fast_bytes: int
    """Size of the machine's fast memory."""
    trainings: int
    """Number of identical trainings that run at the same time. Each gets an equal part of the fast
    memory."""


@dataclass(frozen=True)
class Point:
    """One point of a curve: the result of simulating a Question. The values describe a steady step
    (see simulate/simulate.py) of one of the Question's trainings; all trainings have the same
    values."""

    machine: str
    fast_bytes: int
    trainings: int
    slowdown: float | None = None
    """Time of the step, divided by its time if all memory were fast; None: the policy has no
    plan."""
    bound: float | None = None
    """The step-time bound, divided by the time of the step if all memory were fast; None: not
    computed."""
    bytes_promoted: int = 0
    bytes_demoted: int = 0
    error: SentinelError | None = None
    """The reason for a missing plan or bound."""

    def within(self, excess: float) -> bool:
        """Whether the step takes at most (1 + excess) times as long as with all memory fast."""
        return self.slowdown is not None and self.slowdown <= 1 + excess


def point_of(profile: Profile, policy_name: str, asked: Question, with_bound: bool) -> Point:
    """Simulate a training for one point of a curve, in the same way as `make bench-policies` does
    for an entry of its tables."""
    machine, trainings = asked.machine, asked.trainings
    tiers, budget_bytes = machine.share(trainings), asked.fast_bytes // trainings
    found: dict[str, Any] = {}
    try:
        outcome = simulate(profile, policy(policy_name), tiers, budget_bytes)
        found |= {
            "slowdown": outcome.step_seconds / outcome.fast_only_seconds,
            "bytes_promoted": round(outcome.bytes_promoted),
            "bytes_demoted": round(outcome.bytes_demoted),
        }
        if with_bound:
            least_s = bound_seconds_of(policy(policy_name), profile, tiers, budget_bytes)
            found["bound"] = least_s / outcome.fast_only_seconds
    except SentinelError as error:
        found["error"] = error
    return Point(machine.name, asked.fast_bytes, trainings, **found)


@dataclass(frozen=True)
class Knee:
    """The smallest simulated amount of fast memory such that Point.within() is true at this amount
    and at all larger simulated amounts."""

    point: Point
    below: Point | None
    """The next smaller simulated amount, at which Point.within() is false; None: no smaller amount
    was simulated."""


def knee_of(points: Sequence[Point], excess: float) -> Knee | None:
    """Find the knee of a curve; None if Point.within() is false even at the largest amount.

    points: in ascending order of fast memory. excess: see Point.within().
    """
    found: Knee | None = None
    for at in reversed(range(len(points))):
        if not points[at].within(excess):
            break
        found = Knee(points[at], points[at - 1] if at else None)
    return found


@dataclass
class Curves:
    """The points that have been simulated so far."""

    profile: Profile
    policy_name: str
    machines: tuple[Machine, ...]
    sizes: tuple[int, ...]
    """Amounts of fast memory in bytes, ascending."""
    trainings_max: int
    points: dict[tuple[str, int, int], Point] = field(default_factory=dict)
    """The points. Key: (name of the machine, number of trainings, bytes of fast memory)."""

    @property
    def fast_only_seconds(self) -> float:
        """Time of the step if all memory were fast."""
        return float(self.profile.stretches["time_ns"].astype(np.float64).sum()) / 1e9

    def questions(self) -> list[Question]:
        """The questions for all points of all curves. Questions about a single training come
        first: if the simulation is interrupted, the curves of a single training are useful even
        without the curves of several trainings."""
        return [
            Question(machine, size, trainings)
            for trainings in range(1, self.trainings_max + 1)
            for size in self.sizes
            for machine in self.machines
        ]

    def add(self, point: Point) -> None:
        """Add a simulated point."""
        self.points[point.machine, point.trainings, point.fast_bytes] = point

    def curve(self, machine: str, trainings: int) -> list[Point]:
        """The points of one curve that have been simulated, in ascending order of fast memory."""
        keys = [(machine, trainings, size) for size in self.sizes]
        return [self.points[key] for key in keys if key in self.points]

    def share(self, size_bytes: int) -> float:
        """Fast memory as a share of one training's peak."""
        return size_bytes / max(self.profile.peak_bytes, 1)
