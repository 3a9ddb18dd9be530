# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel`: a pool for short-lived tensors, and migration intervals (HPCA'21).

docs/policies.md compares the policy with the paper and lists the choices that the paper leaves
open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import Layout, Plan
from sentineld.model.profile import Kind, Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import Items, access_pages, chunks, tensor_pages
from sentineld.plan.layers import short_lived
from sentineld.plan.layout import Area, area_offsets, build_layout, slow_born_areas
from sentineld.plan.packing import circular_peak
from sentineld.plan.residency import places
from sentineld.plan.schedule import initial_ranges, needed_waits, planned_moves
from sentineld.policies.lp.relax import Capacities, Prices, Relaxed, relax, used_pages
from sentineld.policies.registry import register
from sentineld.policies.require import require
from sentineld.policies.sentinel.fit import Fitting
from sentineld.policies.sentinel.intervals import (
    Interval,
    interval,
    lengths,
    may_enter,
    pooled_moves,
)
from sentineld.policies.sentinel.trial import stalling

CHUNKS_MAX = 800
CHUNK_PAGES_MIN = 16
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


@dataclass(frozen=True)
class _Split:
    """Division of the tensors between the pool and the schedule."""

    pooled: Integers
    """Short-lived tensors of the pool: rows of the profile."""

    candidates: Integers
    """Tensors that are scheduled: persistent ones, long-lived ones, and short-lived ones that are
    too large for the pool."""

    pool_pages: int


@register("sentinel", False)
@register("sentinel+spill", True)
@dataclass
class Sentinel:
    """Policy `sentinel`, and policy `sentinel+spill` if `spills` is set."""

    name: str

    spills: bool
    """Whether to make a plan even if the short-lived tensors together exceed the budget. The
    largest of them are then planned like long-lived ones. The published policy does not do this."""

    charges_budget: bool = True

    move_share: float = 0.85
    """Share of a step's time that is available for moves."""

    margin_share: float = 0.01
    """Share of the budget that is kept free for needs that a plan can't foresee."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy.

        Raises SentinelError if a precondition of require() does not hold or, unless `spills` is
        set, if short-lived tensors alone exceed the budget.
        """
        require(profile, tiers, budget_bytes)
        page, count = profile.page_bytes, profile.stretch_count
        limit = int(budget_bytes * (1 - self.margin_share)) // page
        # On paged tiers, promotions and demotions differ in speed. Their mean suffices as the rate,
        # because a page that moves out also moves back.
        rate = tiers.migration_bytes_per_s * self.move_share / page
        moves = profile.stretches["time_ns"].astype(np.float64) / 1e9 * rate
        split, relaxed = _split(profile, limit, moves, self.spills)
        items = chunks(profile, split.candidates, _chunk_pages(profile, split.candidates))
        room = np.full(count, float(limit - split.pool_pages))
        pooled = pooled_moves(moves, int(items.pages.max(initial=1)))
        chosen, fitting = _schedule(items, Capacities(room, pooled), relaxed)

        layout = _layout(profile, split, fitting, limit)
        notes = _notes(profile, split, chosen, limit)
        plan = draft(self.name, profile, budget_bytes, layout, notes)
        space, offset = places(plan, profile)
        persistent = split.candidates[profile.tensors["slot"][split.candidates] < 0]
        lives = fitting.lives()
        plan = replace(
            plan,
            moves=planned_moves(profile, items, lives, space, offset),
            initial=initial_ranges(profile, persistent, items, lives, offset),
        )
        return finished(plan, profile, tiers)

    def variants(self, plan: Plan) -> Sequence[tuple[str, Plan]]:
        """Variants for trial runs; see HasVariants."""
        return [("stalls for late promotions", stalling(plan))]


def _split(profile: Profile, limit: int, moves: Floats, spills: bool) -> tuple[_Split, Relaxed]:
    """Choose the largest pool, unless a smaller pool clearly raises the bound on the page accesses
    served fast."""
    short = np.flatnonzero(short_lived(profile))
    rows = profile.tensors[short]
    pages, page = tensor_pages(profile), profile.page_bytes
    birth, death = rows["birth_event"].astype(np.int64), rows["death_event"].astype(np.int64)
    peak = circular_peak(pages[short], birth, death, profile.event_count)
    if peak > limit and not spills:
        raise SentinelError(
            "failed",
            f"infeasible as published: short-lived tensors alone need {format_bytes(peak * page)} "
            f"of fast memory at a time, and {format_bytes(limit * page)} are available",
            "give the process more fast memory, or use the policy sentinel+spill",
        )
    found: list[tuple[float, _Split, Relaxed]] = []
    seen: set[int] = set()
    for share in POOL_SHARES:
        pooled, size = _pool(profile, short, int(limit * share))
        if len(pooled) in seen:
            continue
        seen.add(len(pooled))
        split = _Split(pooled, _candidates(profile, pooled), size)
        items = chunks(profile, split.candidates, int(pages.max(initial=1)))
        capacities = Capacities(np.full(profile.stretch_count, float(limit - size)), moves)
        relaxed = relax(items, capacities, RELAX_ROUNDS)
        served = relaxed.bound - float(items.worth.sum())
        found.append((served, split, relaxed))
    everything = max(float(access_pages(profile).sum()), 1.0)
    best = found[0]
    for candidate in found[1:]:
        if candidate[0] - best[0] > POOL_GAIN * everything:
            best = candidate
    return best[1], best[2]


def _pool(profile: Profile, short: Integers, limit: int) -> tuple[Integers, int]:
    """(tensors of the pool, pages of the pool).

    The pool holds all short-lived tensors up to a maximum size. This size is the largest one at
    which the pool stays within `limit`.
    """
    pages = tensor_pages(profile)[short]
    for largest in np.unique(pages)[::-1].tolist():
        pooled = short[pages <= largest]
        rows = profile.tensors[pooled]
        least = circular_peak(
            tensor_pages(profile)[pooled],
            rows["birth_event"].astype(np.int64),
            rows["death_event"].astype(np.int64),
            profile.event_count,
        )
        if least > limit:
            continue
        _, size = area_offsets(profile, pooled, grouped=False)
        if size <= limit:
            return pooled, size
    return short[:0], 0


def _candidates(profile: Profile, pooled: Integers) -> Integers:
    tensors = profile.tensors
    outlasting = (tensors["slot"] >= 0) & (tensors["kind"] == Kind.PERSISTENT)
    elsewhere = (tensors["slot"] < 0) & (tensors["address"] < profile.heap_base)
    rest = ~outlasting & ~elsewhere
    rest[pooled] = False
    return np.flatnonzero(rest)


def _chunk_pages(profile: Profile, candidates: Integers) -> int:
    """Number of pages of a chunk. It is small, so that chunks can move in short stretches, but
    large enough that there are at most about CHUNKS_MAX chunks."""
    total = int(tensor_pages(profile)[candidates].sum())
    return max(CHUNK_PAGES_MIN, -(-total // CHUNKS_MAX))


def _schedule(items: Items, capacities: Capacities, relaxed: Relaxed) -> tuple[Interval, Fitting]:
    """Try some interval lengths and the whole step; keep the schedule with the best
    Fitting.score().

    The lengths are chosen from those that meet the space and time constraints, or from all lengths
    if no length meets them.
    """
    count = items.stretch_count
    judged = [interval(items, n, capacities.room, capacities.moves) for n in lengths(count)]
    allowed = [one for one in judged if one.fits_space and one.fits_time] or judged
    tried = allowed[-INTERVALS_TRIED:]
    whole = interval(items, count, capacities.room, capacities.moves)
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


def _layout(profile: Profile, split: _Split, fitting: Fitting, limit: int) -> Layout:
    items, lives = fitting.items, fitting.lives()
    tensors = len(profile.tensors)
    transient = ~items.persistent
    born_fast, moved = np.zeros(tensors, np.bool_), np.zeros(tensors, np.bool_)
    born_fast[items.tensor[transient & lives.fast[0]]] = True
    moved[items.tensor[lives.moving.any(axis=0)]] = True
    placed = np.zeros(tensors, np.bool_)
    placed[items.tensor[transient]] = True
    fast, slow = np.flatnonzero(placed & born_fast), np.flatnonzero(placed & ~born_fast)
    areas = (
        Area("pool", 0, split.pooled, np.zeros(len(split.pooled), np.bool_), grouped=False),
        Area("fast-born", 0, fast, np.ones(len(fast), np.bool_), still=~moved[fast]),
        *slow_born_areas(slow, moved),
    )
    return build_layout(profile, areas, _waits(split, fitting, limit), heap_tier=1)


def _waits(split: _Split, fitting: Fitting, limit: int) -> Integers:
    items, lives = fitting.items, fitting.lives()
    count = items.stretch_count
    stretch = items.stretch_of()
    room, _ = used_pages(items, lives, stretch)
    born: Mask = lives.fast[0] & ~items.persistent
    births = np.bincount(items.birth[born], items.pages[born], minlength=count)
    position, chunk = np.nonzero(lives.moving & lives.fast)
    demoted = list(zip(stretch[position, chunk].tolist(), items.pages[chunk].tolist(), strict=True))
    charged = np.rint(room).astype(np.int64) + split.pool_pages
    return needed_waits(charged, births.astype(np.int64), demoted, limit)


def _notes(profile: Profile, split: _Split, chosen: Interval, limit: int) -> tuple[str, ...]:
    page = profile.page_bytes
    pool = (
        f"pool of {format_bytes(split.pool_pages * page)} for {len(split.pooled)} short-lived "
        f"tensors; {format_bytes((limit - split.pool_pages) * page)} for other tensors"
    )
    if chosen.stretches >= profile.stretch_count:
        return pool, "migration interval: the whole step; shorter ones serve no more accesses fast"
    return (
        pool,
        f"migration interval: {chosen.stretches} stretches, which use up to "
        f"{format_bytes(chosen.need_pages * page)} "
        f"(space constraint {'met' if chosen.fits_space else 'not met: some pages stay slow'}, "
        f"time constraint {'met' if chosen.fits_time else 'not met: the best moves are made'})",
    )
