# SPDX-License-Identifier: Apache-2.0
"""A plan's figures by moment, by boundary and by tensor: live bytes by tier, moves, fast shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.residency import ABSENT, UNKNOWN, Residency, pages_on_tier
from sentineld.plan.stall_trial import late_moves
from sentineld.plan.turnover import first_moments
from sentineld.report.timeline import Timeline, event_times, live_bytes

TIERS = ("fast", "slow", "chosen by the kernel", "not planned")
"""The groups of live bytes: the two tiers, pages whose tier the kernel chooses, and tensors that
the plan does not place."""


@dataclass(frozen=True)
class BoundaryMoves:
    """The moves that start at each boundary, as arrays (S,)."""

    up_bytes: Integers  # to the fast tier
    down_bytes: Integers  # to the slow tier
    late_bytes: Integers  # the part of up_bytes that is late by plan
    count: Integers  # number of moves
    waits: Integers  # as Layout.waits


def tier_timeline(plan: Plan, profile: Profile, found: Residency) -> Timeline:
    """Live bytes of each group in TIERS at each moment of the step. found: the plan's residency."""
    page = profile.page_bytes
    on_tiers = [pages_on_tier(profile, found, tier) * page for tier in (0, 1, UNKNOWN)]
    times, total = _moments(profile)
    rest = np.maximum(total - sum(on_tiers), 0)
    return Timeline(times, np.stack([*on_tiers, rest]))


def boundary_moves(plan: Plan, profile: Profile) -> BoundaryMoves:
    """The plan's moves by boundary."""
    moves, count = plan.moves, profile.stretch_count
    sizes = moves["bytes"].astype(np.int64)
    up, late = moves["tier"] == 0, late_moves(plan)

    def summed(amounts: Integers) -> Integers:
        found: Integers = np.bincount(moves["boundary"], amounts, minlength=count).astype(np.int64)
        return found

    return BoundaryMoves(
        up_bytes=summed(sizes * up),
        down_bytes=summed(sizes * ~up),
        late_bytes=summed(sizes * (up & late)),
        count=summed(np.ones(len(moves), np.int64)),
        waits=plan.layout.waits.astype(np.int64),
    )


def fast_shares_of_life(profile: Profile, found: Residency) -> Floats:
    """(T,): the share 0..1 of each tensor's (page, stretch) pairs that is on the fast tier; NaN if
    the plan does not place the tensor."""
    many = len(profile.tensors)
    alive, fast = (
        np.bincount(found.tensor, (which * found.pages).sum(axis=0), minlength=many)
        for which in (found.tier != ABSENT, found.tier == 0)
    )
    shares: Floats = np.where(alive > 0, fast / np.maximum(alive, 1), np.nan)
    return shares


def _moments(profile: Profile) -> tuple[Floats, Integers]:
    """Two arrays (M,): the time in ns since the step began and the live bytes at each moment. A
    stretch has one moment before each of its events and one after the last (plan/turnover.py)."""
    events = profile.event_count
    first = first_moments(profile)
    stretch = np.repeat(np.arange(profile.stretch_count), np.diff(first))
    # The event before each moment; -1: the last event of the previous step.
    before = np.arange(first[-1]) - stretch - 1
    is_begin = np.isin(np.arange(first[-1]), first[:-1])
    durations = profile.stretches["time_ns"].astype(np.float64)
    begins = np.cumsum(durations) - durations
    times = np.where(is_begin, begins[stretch], event_times(profile)[np.maximum(before, 0)])
    live = live_bytes(profile, np.zeros(len(profile.tensors), np.int64)).sum(axis=0)
    return times, live[np.where(before < 0, max(events - 1, 0), before)]
