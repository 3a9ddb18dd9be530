# SPDX-License-Identifier: Apache-2.0
"""The share of a step's tensors that a layout places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.plan import SLOT_PLANNED, Layout
from sentineld.model.profile import Profile
from sentineld.plan.packing import circular_peak


@dataclass(frozen=True)
class Coverage:
    """The share of a step's allocations of at least 4 KiB that a layout places in the arena, and
    the peak of the placed ones."""

    planned_share: float  # placed allocations divided by all allocations
    planned_bytes_share: float  # bytes of the placed allocations divided by bytes of all
    # Peak of the planned tensors, each rounded up to whole pages: the smallest possible arena.
    peak_bytes: int


def coverage(layout: Layout, profile: Profile) -> Coverage:
    """Return the coverage of a layout made for this profile."""
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
