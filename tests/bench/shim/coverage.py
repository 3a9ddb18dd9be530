# SPDX-License-Identifier: Apache-2.0
"""How much of a step a layout has a place for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.plan import SLOT_PLANNED, Layout
from sentineld.model.profile import Profile
from sentineld.plan.packing import circular_peak


@dataclass(frozen=True)
class Coverage:
    """planned_share, planned_bytes_share: of the step's allocations of 4 KiB and more: all that
    have slots. peak_bytes: of those planned, rounded to pages; no arena can be smaller."""

    planned_share: float
    planned_bytes_share: float
    peak_bytes: int


def coverage(layout: Layout, profile: Profile) -> Coverage:
    """Of a layout that was made for this profile."""
    born = profile.tensors[profile.tensors["slot"] >= 0]
    placed = (layout.slots["flags"][born["slot"]] & SLOT_PLANNED) != 0
    rows = born[placed]
    page = profile.page_bytes
    return Coverage(
        planned_share=float(placed.mean()),
        planned_bytes_share=float(rows["bytes"].sum() / born["bytes"].sum()),
        peak_bytes=circular_peak(
            -(-rows["bytes"].astype(np.int64) // page) * page,
            rows["birth_event"].astype(np.int64),
            rows["death_event"].astype(np.int64),
            profile.event_count,
        ),
    )
