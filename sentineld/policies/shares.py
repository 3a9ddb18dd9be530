# SPDX-License-Identifier: Apache-2.0
"""The parts of bandwidth and budget that plans use. They are the same for all policies that make
plans, so that the plans can be compared."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of

MOVE_SHARE = 0.99
"""Share of a step's time that is available for moves."""

MARGIN_SHARE = 0.002
"""Share of the budget that is kept free for needs that a plan can't foresee."""


def usable_pages(budget_bytes: int, page_bytes: int) -> int:
    """The budget in whole pages, minus MARGIN_SHARE of them (rounded down)."""
    pages = budget_bytes // page_bytes
    return pages - int(pages * MARGIN_SHARE)


def usable_moves(profile: Profile, tiers: Tiers) -> Floats:
    """(S,): number of pages that a plan may move in each stretch, in both directions together.

    On paged tiers, promotions and demotions differ in speed. tiers.migration_bytes_per_s is then
    the harmonic mean of both speeds, which suffices because a page that moves out also moves back.
    """
    rate = tiers.migration_bytes_per_s * MOVE_SHARE / profile.page_bytes
    found: Floats = profile.stretches["time_ns"].astype(np.float64) / 1e9 * rate
    return found


def page_moves_ns(tiers: Tiers, page_bytes: int) -> tuple[float, float]:
    """(time of a promotion, time of a demotion) of a page, in ns, if plans use MOVE_SHARE of the
    bandwidth."""
    timing = timing_of(tiers)
    return (
        timing.promote_ns_per_byte * page_bytes / MOVE_SHARE,
        timing.demote_ns_per_byte * page_bytes / MOVE_SHARE,
    )
