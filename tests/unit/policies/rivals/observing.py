# SPDX-License-Identifier: Apache-2.0
"""Observations of cells of ten pages each."""

from __future__ import annotations

import numpy as np

from sentineld.plan.policy import Observation


def observation(
    accesses: list[float], fast: list[int], free: int = 0, moves: int = 1000, capacity: int = 20
) -> Observation:
    pages = np.full(len(fast), 10)
    return Observation(
        now_ns=0.0,
        accesses=np.array(accesses),
        fast=np.array(fast),
        slow=pages - np.array(fast),
        free_pages=free,
        capacity_pages=capacity,
        move_pages=moves,
    )
