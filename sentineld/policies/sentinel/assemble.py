# SPDX-License-Identifier: Apache-2.0
"""Make a plan from a pool and the lives of the chunks outside the pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats, Integers, Mask, Table
from sentineld.model.plan import Layout, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import Items, chunks, dies_in_birth_stretch_of, tensor_pages
from sentineld.plan.layout import Area, build_layout, slow_born_areas
from sentineld.plan.lives import Lives
from sentineld.plan.residency import places
from sentineld.plan.schedule import initial_ranges, needed_waits, planned_moves, with_late
from sentineld.plan.stall_trial import stall_boundaries
from sentineld.policies.lp.relax import used_pages
from sentineld.policies.sentinel.intervals import pooled_moves
from sentineld.policies.sentinel.pool import Split
from sentineld.policies.shares import usable_moves

CHUNKS_MAX = 800
CHUNK_PAGES_MIN = 16


def chunks_of(profile: Profile, candidates: Integers) -> Items:
    """Cut tensors (rows of the profile) into chunks. The chunks are small, so that they can move in
    short stretches, but large enough that cutting adds at most CHUNKS_MAX chunks.

    Some tensors are born in one step and die in the same stretch of the next step. The Items.worth
    of their chunks is set to 0, so that these chunks stay slow: a schedule has only one tier for a
    chunk in a stretch, but such a tensor has two lives in this stretch.
    """
    total = int(tensor_pages(profile)[candidates].sum())
    items = chunks(profile, candidates, max(CHUNK_PAGES_MIN, -(-total // CHUNKS_MAX)))
    items.worth[:, dies_in_birth_stretch_of(profile)[items.tensor]] = 0.0
    return items


def chunk_moves(profile: Profile, tiers: Tiers, items: Items) -> Floats:
    """(S,): number of pages that a plan may move in each stretch if only whole chunks move."""
    return pooled_moves(usable_moves(profile, tiers), int(items.pages.max(initial=1)))


@dataclass(frozen=True)
class Placement:
    """A pool, and the chunks outside the pool with their lives."""

    split: Split
    items: Items
    lives: Lives
    limit: int  # fast memory for pool and chunks, in pages
    late: Mask  # (S, N): the promotions that are late by plan, by position (see Lives)

    def pool_note(self, profile: Profile) -> str:
        """A note on the pool, for the plan's notes."""
        page, pool = profile.page_bytes, self.split.pool_pages
        return (
            f"pool of {format_bytes(pool * page)} for {len(self.split.pooled)} short-lived "
            f"tensors; {format_bytes((self.limit - pool) * page)} for other tensors"
        )


def assemble(
    name: str,
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    placed: Placement,
    notes: tuple[str, ...],
) -> Plan:
    """The plan that carries out a placement. name: the policy's name."""
    split, items, lives = placed.split, placed.items, placed.lives
    plan = draft(name, profile, budget_bytes, _layout(profile, placed), notes)
    space, offset = places(plan, profile)
    persistent = split.candidates[profile.tensors["slot"][split.candidates] < 0]

    def moves(moving: Mask) -> Table:
        return planned_moves(profile, items, replace(lives, moving=moving), space, offset)

    in_time = moves(lives.moving & ~placed.late)
    plan = replace(
        plan,
        moves=in_time,
        initial=initial_ranges(profile, persistent, items, lives, offset),
    )
    if not placed.late.any():
        return finished(plan, profile, tiers)
    both, late = with_late(in_time, moves(placed.late), profile)
    if tiers.paged or profile.stretch_count == 1:
        # In these two cases, the process cannot stall at a boundary. On paged tiers, it waits for a
        # page only when it accesses the page. A step of a single stretch has only one boundary,
        # which would have to wait for the moves that start there.
        return finished(replace(plan, moves=both), profile, tiers)
    return finished(_with_waits(replace(plan, moves=both, late=late)), profile, tiers)


def _with_waits(plan: Plan) -> Plan:
    """The plan with a wait at each boundary at which the process may stall."""
    waits = plan.layout.waits.copy()
    stalls = stall_boundaries(plan)
    waits[stalls] = (stalls - 1) % len(waits)
    return replace(plan, layout=replace(plan.layout, waits=waits))


def _layout(profile: Profile, placed: Placement) -> Layout:
    split, items, lives = placed.split, placed.items, placed.lives
    tensors = len(profile.tensors)
    transient = ~items.persistent
    born_fast, moved = np.zeros(tensors, np.bool_), np.zeros(tensors, np.bool_)
    born_fast[items.tensor[transient & lives.fast[0]]] = True
    moved[items.tensor[lives.moving.any(axis=0)]] = True
    in_arena = np.zeros(tensors, np.bool_)
    in_arena[items.tensor[transient]] = True
    fast, slow = np.flatnonzero(in_arena & born_fast), np.flatnonzero(in_arena & ~born_fast)
    areas = (
        Area("pool", 0, split.pooled, np.zeros(len(split.pooled), np.bool_), grouped=False),
        Area("fast-born", 0, fast, np.ones(len(fast), np.bool_), still=~moved[fast]),
        *slow_born_areas(slow, moved),
    )
    return build_layout(profile, areas, _waits(placed), heap_tier=1)


def _waits(placed: Placement) -> Integers:
    items, lives = placed.items, placed.lives
    count = items.stretch_count
    stretch = items.stretch_of()
    room, _ = used_pages(items, lives, stretch)
    born: Mask = lives.fast[0] & ~items.persistent
    births = np.bincount(items.birth[born], items.pages[born], minlength=count)
    position, chunk = np.nonzero(lives.moving & lives.fast)
    demoted = list(zip(stretch[position, chunk].tolist(), items.pages[chunk].tolist(), strict=True))
    charged = np.rint(room).astype(np.int64) + placed.split.pool_pages
    return needed_waits(charged, births.astype(np.int64), demoted, placed.limit)
