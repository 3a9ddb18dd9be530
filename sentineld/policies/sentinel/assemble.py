# SPDX-License-Identifier: Apache-2.0
"""Make a plan from a pool and the lives of the chunks beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Layout, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import Items, chunks, tensor_pages
from sentineld.plan.layout import Area, build_layout, slow_born_areas
from sentineld.plan.lives import Lives
from sentineld.plan.residency import places
from sentineld.plan.schedule import initial_ranges, needed_waits, planned_moves
from sentineld.policies.lp.relax import used_pages
from sentineld.policies.sentinel.pool import Split

CHUNKS_MAX = 800
CHUNK_PAGES_MIN = 16


def chunks_of(profile: Profile, candidates: Integers) -> Items:
    """Cut tensors (rows of the profile) into chunks. The chunks are small, so that they can move in
    short stretches, but there are at most about CHUNKS_MAX of them."""
    total = int(tensor_pages(profile)[candidates].sum())
    return chunks(profile, candidates, max(CHUNK_PAGES_MIN, -(-total // CHUNKS_MAX)))


@dataclass(frozen=True)
class Schedule:
    """A pool, and the chunks beside it with their lives."""

    split: Split
    items: Items
    lives: Lives
    limit: int  # fast memory for pool and chunks, in pages

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
    schedule: Schedule,
    notes: tuple[str, ...],
) -> Plan:
    """The plan that carries out a schedule. name: the policy's name."""
    split, items, lives = schedule.split, schedule.items, schedule.lives
    plan = draft(name, profile, budget_bytes, _layout(profile, schedule), notes)
    space, offset = places(plan, profile)
    persistent = split.candidates[profile.tensors["slot"][split.candidates] < 0]
    plan = replace(
        plan,
        moves=planned_moves(profile, items, lives, space, offset),
        initial=initial_ranges(profile, persistent, items, lives, offset),
    )
    return finished(plan, profile, tiers)


def _layout(profile: Profile, schedule: Schedule) -> Layout:
    split, items, lives = schedule.split, schedule.items, schedule.lives
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
    return build_layout(profile, areas, _waits(schedule), heap_tier=1)


def _waits(schedule: Schedule) -> Integers:
    items, lives = schedule.items, schedule.lives
    count = items.stretch_count
    stretch = items.stretch_of()
    room, _ = used_pages(items, lives, stretch)
    born: Mask = lives.fast[0] & ~items.persistent
    births = np.bincount(items.birth[born], items.pages[born], minlength=count)
    position, chunk = np.nonzero(lives.moving & lives.fast)
    demoted = list(zip(stretch[position, chunk].tolist(), items.pages[chunk].tolist(), strict=True))
    charged = np.rint(room).astype(np.int64) + schedule.split.pool_pages
    return needed_waits(charged, births.astype(np.int64), demoted, schedule.limit)
