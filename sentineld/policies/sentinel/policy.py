# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel`: a pool for short-lived tensors, and migration intervals (HPCA'21).

docs/policies.md compares the policy with the paper and lists the choices that the paper leaves
open.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import Items, by_position, tensor_pages
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.policies.sentinel.assemble import Placement, assemble, chunk_moves, chunks_of
from sentineld.policies.sentinel.interval_moves import IntervalSchedule, IntervalScheduler
from sentineld.policies.sentinel.intervals import Constraints, Interval
from sentineld.policies.sentinel.pool import whole_pool
from sentineld.policies.shares import page_moves_ns, usable_pages


class _Judged(NamedTuple):
    """An interval length with its schedule and the value of this schedule."""

    saved_ns: float  # time that a step saves, compared with a step in which all chunks are slow
    # Page accesses served fast in a step if the process does not wait for late promotions.
    served: float
    interval: Interval
    schedule: IntervalSchedule


@register()
class Sentinel:
    """The published policy. It makes no plan if the short-lived tensors, which die in the layer of
    their birth, exceed the budget."""

    name = "sentinel"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy.

        Raises SentinelError if a precondition of require() does not hold, or if the short-lived
        tensors exceed the budget.
        """
        require(profile, tiers, budget_bytes)
        page = profile.page_bytes
        limit = usable_pages(budget_bytes, page)
        split = whole_pool(profile, limit)
        items = chunks_of(profile, split.candidates)
        room, moves = float(limit - split.pool_pages), chunk_moves(profile, tiers, items)
        judge = _Judge(items, _slow_ns(profile, tiers, items), page_moves_ns(tiers, page)[0])
        best, tried = _best(items, room, moves, judge)
        schedule = best.schedule
        placed = Placement(split, items, schedule.lives, limit, schedule.late)
        notes = placed.pool_note(profile), *_notes(profile, items, best, tried)
        return assemble(self.name, profile, tiers, budget_bytes, placed, notes)


class _Judge(NamedTuple):
    """Computes the value of schedules; see _Judged."""

    items: Items
    slow_ns: Floats  # see _slow_ns()
    promote_ns: float  # time to promote a page

    def __call__(self, one: Interval, schedule: IntervalSchedule) -> _Judged:
        """Evaluate a schedule. Late promotions cost the time that the process waits for them, or
        the extra time of the accesses to their pages in slow memory, whichever is less."""
        items = self.items
        in_place = schedule.lives.fast & ~schedule.lives.moving
        saved_ns = float((self.slow_ns * in_place).sum())
        served = float((items.worth * in_place).sum())
        count = items.stretch_count
        late = items.by_stretch(schedule.late)
        for stretch in np.flatnonzero(late.any(axis=1)).tolist():
            chunks = np.flatnonzero(late[stretch])
            begin = (stretch + 1) % count
            following = np.arange(begin, min(begin + one.stretches, count))
            at = (following[:, None] - items.birth[chunks][None, :]) % count, chunks[None, :]
            waiting_ns = float(items.pages[chunks].sum()) * self.promote_ns
            leaving_ns = float((self.slow_ns[at] * in_place[at]).sum())
            saved_ns -= min(waiting_ns, leaving_ns)
            served -= float((items.worth[at] * in_place[at]).sum())
        return _Judged(saved_ns, served, one, schedule)


def _best(items: Items, room: float, moves: Floats, judge: _Judge) -> tuple[_Judged, int]:
    """(the best interval length, number of lengths tried). Longer lengths are tried first. If all
    accesses are fast with one length, shorter ones can't be better and are not tried."""
    scheduler = IntervalScheduler(items, room, moves)
    accesses = float(items.worth.sum()) * (1 - 1e-9)
    best: _Judged | None = None
    tried = 0
    for one in reversed(_lengths(Constraints(items, room, moves), len(moves))):
        tried += 1
        judged = judge(one, scheduler.schedule(one.stretches))
        # Two lengths can save the same time although one of them serves more accesses fast, because
        # the timing model charges nothing for small tensors. In this case, the number of accesses
        # served fast decides.
        if best is None or judged[:2] > best[:2]:
            best = judged
        if judged.served >= accesses:
            break
    assert best is not None
    return best, tried


def _lengths(constraints: Constraints, count: int) -> list[Interval]:
    """The interval lengths to try in a step of `count` stretches, ascending: all that meet both
    constraints. If no length meets both, the list has one length for each possible number of
    intervals: the shortest one, because its intervals differ least in size."""
    found = [constraints.interval(length) for length in range(1, count + 1)]
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


def _notes(profile: Profile, items: Items, best: _Judged, tried: int) -> tuple[str, ...]:
    one, schedule = best.interval, best.schedule
    late = int(items.by_stretch(schedule.late).any(axis=1).sum())
    met = {True: "met", False: "not met"}
    notes = [
        f"migration interval: {one.stretches} stretches (lengths tried: {tried}), which use up to "
        f"{format_bytes(one.need_pages * profile.page_bytes)} (space constraint "
        f"{met[one.fits_space]}, time constraint {met[one.fits_time]})",
        f"intervals that end with promotions left: {schedule.without_room} for lack of room, "
        f"{late} for lack of time",
    ]
    if schedule.unsteady:
        notes.append(f"{schedule.unsteady} chunks stay slow, because no steady schedule was found")
    return tuple(notes)
