# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel`: a pool for short-lived tensors, and migration intervals (HPCA'21).

docs/policies.md compares the policy with the paper and lists the choices that the paper leaves
open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import Items, by_position, tensor_pages
from sentineld.policies.lp.relax import Capacities
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.policies.sentinel.assemble import Schedule, assemble, chunks_of
from sentineld.policies.sentinel.interval_moves import IntervalSchedule, IntervalScheduler
from sentineld.policies.sentinel.intervals import Interval, interval, pooled_moves
from sentineld.policies.sentinel.pool import whole_pool
from sentineld.policies.sentinel.trial import stalling
from sentineld.policies.shares import MOVE_SHARE, usable_pages


class _Judged(NamedTuple):
    """An interval length that was scheduled."""

    saved_ns: float  # time that accesses to fast pages save in a step
    served: float  # page accesses served fast in a step
    interval: Interval
    schedule: IntervalSchedule


@register()
class Sentinel:
    """The published policy. It has no plan if the short-lived tensors exceed the budget."""

    name = "sentinel"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy.

        Raises SentinelError if a precondition of require() does not hold, or if the short-lived
        tensors exceed the budget.
        """
        require(profile, tiers, budget_bytes)
        page, count = profile.page_bytes, profile.stretch_count
        limit = usable_pages(budget_bytes, page)
        split = whole_pool(profile, limit)
        items = chunks_of(profile, split.candidates)
        # On paged tiers, promotions and demotions differ in speed. Their mean suffices as the rate,
        # because a page that moves out also moves back.
        rate = tiers.migration_bytes_per_s * MOVE_SHARE / page
        moves = profile.stretches["time_ns"].astype(np.float64) / 1e9 * rate
        capacities = Capacities(
            np.full(count, float(limit - split.pool_pages)),
            pooled_moves(moves, int(items.pages.max(initial=1))),
        )
        judged = _judged(items, capacities, _slow_ns(profile, tiers, items))
        # Accesses to small tensors cost no time in the timing model.
        best = max(judged, key=lambda one: (one.saved_ns, one.served))
        schedule = Schedule(split, items, best.schedule.lives, limit)
        notes = schedule.pool_note(profile), *_notes(profile, best, len(judged))
        return assemble(self.name, profile, tiers, budget_bytes, schedule, notes)

    def variants(self, plan: Plan) -> Sequence[tuple[str, Plan]]:
        """Variants for trial runs; see HasVariants."""
        return [("stalls for late promotions", stalling(plan))]


def _judged(items: Items, capacities: Capacities, slow_ns: Floats) -> list[_Judged]:
    """Schedule and judge interval lengths, the longest one first. If all accesses are fast with a
    length, the shorter ones are left out."""
    scheduler = IntervalScheduler(items, capacities)
    accesses = float(items.worth.sum()) * (1 - 1e-9)
    found: list[_Judged] = []
    for one in reversed(_lengths(items, capacities)):
        schedule = scheduler.schedule(one.stretches)
        in_place = schedule.lives.fast & ~schedule.lives.moving
        served = float(schedule.lives.served(items).sum())
        found.append(_Judged(float((slow_ns * in_place).sum()), served, one, schedule))
        if served >= accesses:
            break
    return found


def _lengths(items: Items, capacities: Capacities) -> list[Interval]:
    """The interval lengths to schedule, ascending: all that meet both constraints; if there are
    none, one for each number of intervals in the step, because other lengths only change the
    last interval."""
    count = items.stretch_count
    found = [interval(items, length, capacities) for length in range(1, count + 1)]
    allowed = [one for one in found if one.fits_space and one.fits_time]
    shortest = {-(-count // one.stretches): one for one in reversed(found)}
    return allowed or list(reversed(shortest.values()))


def _slow_ns(profile: Profile, tiers: Tiers, items: Items) -> Floats:
    """(S, N): the extra time of the accesses to each chunk, at each position of its life, if the
    chunk is slow."""
    of_tensor = by_position(profile, timing_of(tiers).extra_ns(profile))
    share = items.pages / np.maximum(tensor_pages(profile)[items.tensor], 1)
    found: Floats = of_tensor[:, items.tensor] * share
    return found


def _notes(profile: Profile, best: _Judged, judged: int) -> tuple[str, str]:
    one, schedule = best.interval, best.schedule
    met = {True: "met", False: "not met"}
    return (
        f"migration interval: {one.stretches} stretches, the best of {judged} lengths; uses up to "
        f"{format_bytes(one.need_pages * profile.page_bytes)} (space constraint "
        f"{met[one.fits_space]}, time constraint {met[one.fits_time]})",
        f"intervals that leave promotions: {schedule.without_room} for lack of room, "
        f"{schedule.without_time} for lack of time",
    )
