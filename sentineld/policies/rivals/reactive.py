# SPDX-License-Identifier: Apache-2.0
"""What reactive policies share: the layout that they find, and filling wishes up to a limit."""

from __future__ import annotations

from collections.abc import Iterable

from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.policy import Wish
from sentineld.policies.baselines import Baseline

STEP_PARTS = (2.0, 1.0, 0.5, 0.1)
"""Intervals that are tried beside the published one, in steps: published intervals are seconds, and
no training step of ours is long enough to be followed in them."""


def first_touch_layout(name: str, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
    """Pages are born on the fast tier while it has room."""
    reason = "where the kernel puts it, and moves it by how it is accessed"
    return Baseline(name, None, reason).plan(profile, tiers, budget_bytes)


def intervals(profile: Profile, published_s: float) -> list[tuple[str, float]]:
    """(words, ns) of the intervals to try."""
    step_ns = float(profile.stretches["time_ns"].sum())
    return [
        (f"interval of {published_s:g} s, as published", published_s * 1e9),
        *((f"interval of {part:g} steps", part * step_ns) for part in STEP_PARTS),
    ]


def wishes(cells: Iterable[int], pages: Integers, tier: int, limit: int) -> list[Wish]:
    """Pages of the cells in this order, at most so many in all."""
    found: list[Wish] = []
    for cell in cells:
        taken = min(int(pages[cell]), limit)
        if taken <= 0:
            if limit <= 0:
                break
            continue
        found.append(Wish(cell, tier, taken))
        limit -= taken
    return found


def total(some: Iterable[Wish]) -> int:
    """Pages of the wishes."""
    return sum(wish.pages for wish in some)
