# SPDX-License-Identifier: Apache-2.0
"""The common part of reactive policies: their first-touch layout, the intervals and settings that
they try, the time of a hint fault, the order of last use, and their requests for moves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.policy import MoveRequest, Observation, Reactor
from sentineld.policies.baselines import Baseline

STEP_PARTS = (2.0, 1.0, 0.5, 0.1)
"""Intervals, in steps, that are tried in addition to the published interval. The published
intervals, 0.1 s to 5 s, are too long to follow the accesses within a step of our benchmarks."""

HINT_FAULT_NS = 1_500.0
"""Time of a hint fault, in ns, under all policies that observe accesses by hint faults. One to two
microseconds is usual, similar to a minor fault (median 1.0 us, 95th percentile 4.0 us, on Linux
6.6)."""

Setting = tuple[str, Callable[[float], Reactor]]
"""(description, function that makes a reactor). The function's argument is the time between two
ticks, in ns."""


class FirstTouchPolicy(ABC):
    """A policy that places pages at their first touch. A reactor moves them later. See Reactive."""

    name: str
    charges_budget = False

    drops = False
    """Whether the system drops the pages of tensors that have died; see first_touch_plan(). Kernels
    are not told about the deaths: they keep these pages, and move them like all others."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """A layout in which pages are born on the fast tier as long as it has room; see Policy."""
        reason = "where the kernel puts it at its first touch, then moved by its accesses"
        baseline = Baseline(self.name, None, reason, drops=self.drops)
        return baseline.plan(profile, tiers, budget_bytes)

    @abstractmethod
    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """See Reactive."""


class ReactivePolicy(FirstTouchPolicy):
    """A policy whose reactor ticks at intervals."""

    published_s: float
    """Interval between two ticks of the reactor, as published, in seconds."""

    @abstractmethod
    def settings(self) -> Sequence[Setting]:
        """The settings to try with each interval, the published setting first."""

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """Reactors with different intervals and settings; see Reactive."""
        return [
            (", ".join(filter(None, (interval, setting))), make(ns))
            for interval, ns in intervals(profile, self.published_s)
            for setting, make in self.settings()
        ]


def intervals(profile: Profile, published_s: float) -> list[tuple[str, float]]:
    """(description, length in ns) of each interval to try."""
    step_ns = float(profile.step_ns)
    return [
        (f"interval of {published_s:g} s, as published", published_s * 1e9),
        *((f"interval of {part:g} steps", part * step_ns) for part in STEP_PARTS),
    ]


def move_requests(
    cells: Iterable[int], pages: Integers, tier: int, limit: int
) -> list[MoveRequest]:
    """Request moves of the cells' pages to a tier, in the order of `cells`, until `limit` pages are
    requested."""
    found: list[MoveRequest] = []
    for cell in cells:
        taken = min(int(pages[cell]), limit)
        if taken <= 0:
            if limit <= 0:
                break
            continue
        found.append(MoveRequest(cell, tier, taken))
        limit -= taken
    return found


def exchange(
    observation: Observation,
    rising: Integers,
    falling: Integers,
    demoted_pages: int,
    headroom_pages: int = 0,
) -> list[MoveRequest]:
    """Request demotions, then promotions into the free and the freed pages of the fast tier.

    rising, falling: cells in the order of their promotion and of their demotion. demoted_pages:
    number of pages to demote; demotions get at most half of the pages that can be moved until the
    next tick. headroom_pages: number of pages that promotions leave free.
    """
    limit = min(max(demoted_pages, 0), observation.move_pages // 2)
    down = move_requests(falling.tolist(), observation.fast, 1, limit)
    room = observation.free_pages + total(down) - headroom_pages
    up = max(min(room, observation.move_pages - total(down)), 0)
    return [*down, *move_requests(rising.tolist(), observation.slow, 0, up)]


def without_move_limit(observation: Observation) -> Observation:
    """The observation for a policy that ticks at every boundary: its limit on moves is raised, so
    that only the room on the fast tier limits the moves. The original limit follows from the length
    of the last stretch, but the next stretch can be longer."""
    return replace(observation, move_pages=2 * observation.capacity_pages)


def pages_below(observation: Observation, rising: Integers, watermark: float) -> int:
    """Number of pages to demote so that the free share of the fast tier is `watermark` after the
    promotion of the rising cells; 0 if the current free share is not below the watermark."""
    low = int(observation.capacity_pages * watermark)
    if observation.free_pages >= low:
        return 0
    return low - observation.free_pages + int(observation.slow[rising].sum())


class LastUse:
    """The number of ticks since the last access to each cell."""

    def __init__(self) -> None:
        self._age: Integers = np.zeros(0, np.int64)

    def tick(self, used: Mask) -> None:
        """Record which cells were accessed since the previous tick. used: (C,)."""
        if not len(self._age):
            self._age = np.zeros(len(used), np.int64)
        self._age = np.where(used, 0, self._age + 1)

    def oldest(self, cells: Mask) -> Integers:
        """The given cells that were not accessed since the previous tick, the least recently
        accessed first. cells: (C,)."""
        found = np.flatnonzero(cells & (self._age >= 1))
        order = np.argsort(-self._age[found], kind="stable")
        return found[order]


def total(some: Iterable[MoveRequest]) -> int:
    """Number of pages of all requests."""
    return sum(request.pages for request in some)
