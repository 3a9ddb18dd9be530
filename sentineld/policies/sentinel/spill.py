# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel+spill`: our own schedule for the published layout.

The layout is that of `sentinel`. But the chunks of a long-lived tensor do not move with the
intervals. Instead, a separate life is chosen for each chunk, by weighing its fast accesses against
a price for each fast page and each move (see Prices in policies/lp/relax.py). The policy also makes
a plan if the short-lived tensors (see pool.py) together exceed the budget: the largest of them are
then planned like long-lived ones. docs/policies.md describes the policy.
"""

from __future__ import annotations

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.items import Items, access_pages, chunks, tensor_pages
from sentineld.policies.lp.relax import Capacities, Prices, Relaxed, relax
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.policies.sentinel.assemble import Placement, assemble, chunk_moves, chunks_of
from sentineld.policies.sentinel.fit import Fitting
from sentineld.policies.sentinel.intervals import (
    Constraints,
    Interval,
    may_enter,
    powers_of_two,
)
from sentineld.policies.sentinel.pool import Split, largest_pool
from sentineld.policies.shares import usable_moves, usable_pages

INTERVALS_TRIED = 1
"""Number of interval lengths that are tried in addition to the whole step. The longest lengths that
meet the constraints are tried."""

RELAX_ROUNDS = 40
ADVANCE_SHARE = 0.25
"""Promotions start earlier than necessary where room and bandwidth remain. The number of stretches
by which a promotion starts earlier is at most this share of the step's stretches."""

FLAT_PRICES = (0.4, 0.015)
"""Price of a page that is fast for a whole step, and price of a moved page, in page accesses. If
bandwidth is plentiful, schedules built with the same prices in all stretches serve more accesses
fast than schedules built with the prices from relax()."""

POOL_SHARES = (1.0, 0.5, 0.25)
"""Candidate limits on the pool, as shares of the budget; the published pool has no limit."""

POOL_GAIN = 0.02
"""A smaller pool is chosen only if the upper bound on the share of page accesses served fast (see
relax()) rises by more than this, because a smaller pool causes more page faults."""


@register()
class SentinelSpill:
    """Policy `sentinel+spill`; see the module's docstring."""

    name = "sentinel+spill"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy. Raises SentinelError if a precondition of require() does not
        hold."""
        require(profile, tiers, budget_bytes)
        limit = usable_pages(budget_bytes, profile.page_bytes)
        split, relaxed = _split(profile, limit, usable_moves(profile, tiers))
        items = chunks_of(profile, split.candidates)
        room = np.full(profile.stretch_count, float(limit - split.pool_pages))
        capacities = Capacities(room, chunk_moves(profile, tiers, items))
        chosen, fitting = _schedule(items, capacities, relaxed)
        lives = fitting.lives()
        placed = Placement(split, items, lives, limit, np.zeros_like(lives.moving))
        notes = placed.pool_note(profile), _note(profile, chosen)
        return assemble(self.name, profile, tiers, budget_bytes, placed, notes)


def _split(profile: Profile, limit: int, moves: Floats) -> tuple[Split, Relaxed]:
    """Choose the largest pool, unless a smaller pool raises the upper bound on the accesses served
    fast. The rise must be more than POOL_GAIN of all page accesses."""
    pages = tensor_pages(profile)
    found: list[tuple[float, Split, Relaxed]] = []
    seen: set[int] = set()
    for share in POOL_SHARES:
        split = largest_pool(profile, int(limit * share))
        if len(split.pooled) in seen:
            continue
        seen.add(len(split.pooled))
        items = chunks(profile, split.candidates, int(pages.max(initial=1)))
        room = np.full(profile.stretch_count, float(limit - split.pool_pages))
        relaxed = relax(items, Capacities(room, moves), RELAX_ROUNDS)
        served = relaxed.bound - float(items.worth.sum())
        found.append((served, split, relaxed))
    everything = max(float(access_pages(profile).sum()), 1.0)
    best = found[0]
    for candidate in found[1:]:
        if candidate[0] - best[0] > POOL_GAIN * everything:
            best = candidate
    return best[1], best[2]


def _schedule(items: Items, capacities: Capacities, relaxed: Relaxed) -> tuple[Interval, Fitting]:
    """Try some interval lengths and the whole step; keep the schedule with the best
    Fitting.score().

    The lengths are chosen from those that meet the space and time constraints, or from all lengths
    if no length meets them.
    """
    count = items.stretch_count
    constraints = Constraints(items, float(capacities.room.min()), capacities.moves)
    judged = [constraints.interval(length) for length in powers_of_two(count)]
    allowed = [one for one in judged if one.fits_space and one.fits_time] or judged
    tried = allowed[-INTERVALS_TRIED:]
    whole = constraints.interval(count)
    room_price, move_price = FLAT_PRICES
    flat = Prices(np.full(count, room_price / count), np.full(count, move_price))
    best: tuple[Interval, Fitting] | None = None
    for one, prices, mask in [
        (whole, flat, None),
        (whole, relaxed.guide, None),
        *((one, flat, may_enter(items, one.stretches)) for one in tried),
    ]:
        fitting = Fitting(items, capacities, prices, mask)
        fitting.fill()
        if best is None or fitting.score() > best[1].score():
            best = one, fitting
    assert best is not None
    best[1].unify_births()
    best[1].advance(max(1, int(count * ADVANCE_SHARE)))
    return best


def _note(profile: Profile, chosen: Interval) -> str:
    if chosen.stretches >= profile.stretch_count:
        return "migration interval: the whole step; shorter ones serve no more accesses fast"
    return (
        f"migration interval: {chosen.stretches} stretches, which use up to "
        f"{format_bytes(chosen.need_pages * profile.page_bytes)} "
        f"(space constraint {'met' if chosen.fits_space else 'not met: some pages stay slow'}, "
        f"time constraint {'met' if chosen.fits_time else 'not met: the best moves are made'})"
    )
