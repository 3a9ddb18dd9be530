# SPDX-License-Identifier: Apache-2.0
"""Plans without moves: every page has one tier for its tensor's whole life."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.items import lasting, tensor_pages, transient
from sentineld.plan.layout import Area, area_offsets, build_layout
from sentineld.plan.predict import initial_tiers, predicted, unpredicted
from sentineld.plan.reasons import reasons
from sentineld.plan.schedule import coalesce


def fixed_pages(profile: Profile, born_fast: Mask, lasting_fast: Integers) -> int:
    """Fast pages that a fixed placement takes: the packing of what is born fast, and the lasting
    pages. Arguments as in fixed_plan()."""
    rows = np.flatnonzero(transient(profile) & born_fast)
    packed = area_offsets(profile, rows, grouped=False)[1] if len(rows) else 0
    return packed + int(lasting_fast[lasting(profile)].sum())


def fixed_plan(
    name: str,
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    born_fast: Mask,
    lasting_fast: Integers,
    notes: tuple[str, ...] = (),
) -> Plan:
    """born_fast: (T,), which transient tensors are fast. lasting_fast: (T,), how many pages of each
    lasting one are, counted from its begin."""
    page, placed = profile.page_bytes, transient(profile)
    areas = [
        # Of the fast one it counts how much it takes.
        Area(area, tier, rows, np.zeros(len(rows), np.bool_), grouped=False, as_born=tier == 1)
        for area, tier, rows in (
            ("fast-born", 0, np.flatnonzero(placed & born_fast)),
            ("slow-born", 1, np.flatnonzero(placed & ~born_fast)),
        )
    ]
    rows = np.flatnonzero(lasting(profile))
    pages, fast = tensor_pages(profile)[rows], lasting_fast[rows]
    start = (profile.tensors["address"][rows] - np.uint64(profile.heap_base)).astype(np.int64)
    start = start // page
    ranges = np.zeros(2 * len(rows), MOVE_DTYPE)
    ranges["space"] = Space.HEAP
    ranges["tensor"] = np.tile(rows, 2)
    ranges["tier"] = np.repeat([0, 1], len(rows))
    ranges["offset"] = np.concatenate([start, start + fast]) * page
    ranges["bytes"] = np.concatenate([fast, pages - fast]) * page
    plan = Plan(
        policy=name,
        budget_bytes=budget_bytes,
        layout=build_layout(
            profile, areas, np.full(profile.stretch_count, -1, np.int64), heap_tier=1
        ),
        moves=np.zeros(0, MOVE_DTYPE),
        initial_tier=np.full(len(profile.tensors), 255, np.uint8),
        reasons=(),
        predicted=unpredicted(),
        notes=notes,
        initial=coalesce(ranges[ranges["bytes"] > 0]),
    )
    plan = replace(plan, initial_tier=initial_tiers(plan, profile))
    return replace(plan, predicted=predicted(plan, profile, tiers), reasons=reasons(plan, profile))
