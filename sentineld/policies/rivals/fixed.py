# SPDX-License-Identifier: Apache-2.0
"""Plans without moves: every page stays on one tier for its tensor's whole life."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import MOVE_DTYPE, Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.draft import draft, finished
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.plan.layout import Area, area_offsets, build_layout
from sentineld.plan.schedule import coalesce


def slow_costs_ns(profile: Profile, tiers: Tiers) -> Floats:
    """(T,): the time that each tensor costs if it is slow for its whole life."""
    return np.bincount(
        profile.accesses["tensor"],
        timing_of(tiers).extra_ns(profile),
        minlength=len(profile.tensors),
    ).astype(np.float64)


def fixed_pages(profile: Profile, born_fast: Mask, persistent_fast: Integers) -> int:
    """Number of fast pages that a fixed placement takes: the size of the area into which the
    fast-born tensors are packed, plus the fast pages of persistent tensors. For the arguments, see
    fixed_plan()."""
    rows = np.flatnonzero(transient(profile) & born_fast)
    packed = area_offsets(profile, rows, grouped=False)[1] if len(rows) else 0
    return packed + int(persistent_fast[persistent(profile)].sum())


def fixed_plan(
    name: str,
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    born_fast: Mask,
    persistent_fast: Integers,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Make the plan of a fixed placement.

    born_fast: (T,), which transient tensors are fast.
    persistent_fast: (T,), number of fast pages of each persistent tensor, counted from its first
    page.
    """
    placed = transient(profile)
    areas = [
        # Only the fast area is packed tightly, because only this area is charged to the budget.
        Area(area, tier, rows, np.zeros(len(rows), np.bool_), grouped=False, as_born=tier == 1)
        for area, tier, rows in (
            ("fast-born", 0, np.flatnonzero(placed & born_fast)),
            ("slow-born", 1, np.flatnonzero(placed & ~born_fast)),
        )
    ]
    waits = np.full(profile.stretch_count, -1, np.int64)
    layout = build_layout(profile, areas, waits, heap_tier=1)
    return with_layout(name, profile, tiers, budget_bytes, layout, persistent_fast, notes)


def with_layout(
    name: str,
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    layout: Layout,
    persistent_fast: Integers,
    notes: tuple[str, ...] = (),
) -> Plan:
    """Make the plan of a fixed placement whose layout is known. persistent_fast: see
    fixed_plan()."""
    page = profile.page_bytes
    rows = np.flatnonzero(persistent(profile))
    pages, fast = tensor_pages(profile)[rows], persistent_fast[rows]
    start = (profile.tensors["address"][rows] - np.uint64(profile.heap_base)).astype(np.int64)
    start = start // page
    ranges = np.zeros(2 * len(rows), MOVE_DTYPE)
    ranges["space"] = Space.HEAP
    ranges["tensor"] = np.tile(rows, 2)
    ranges["tier"] = np.repeat([0, 1], len(rows))
    ranges["offset"] = np.concatenate([start, start + fast]) * page
    ranges["bytes"] = np.concatenate([fast, pages - fast]) * page
    plan = draft(name, profile, budget_bytes, layout, notes)
    plan = replace(plan, initial=coalesce(ranges))
    return finished(plan, profile, tiers)
