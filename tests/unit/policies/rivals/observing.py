# SPDX-License-Identifier: Apache-2.0
"""Observations of cells of ten pages each."""

from __future__ import annotations

import numpy as np

from sentineld.plan.policy import Observation


def observation(
    accesses: list[float],
    fast: list[int],
    free: int = 0,
    moves: int = 1000,
    capacity: int = 20,
    written: list[int] | None = None,
    now_ns: float = 0.0,
    stretch: int = 0,
    latencies_ns: tuple[float, float] = (1.0, 2.0),
) -> Observation:
    """An observation of cells of ten pages each.

    written: 1 for each cell that was written to; None: no cell was written to.
    """
    pages = np.full(len(fast), 10)
    return Observation(
        now_ns=now_ns,
        stretch=stretch,
        accesses=np.array(accesses),
        written=np.zeros(len(fast), np.bool_) if written is None else np.array(written) > 0,
        fast=np.array(fast),
        slow=pages - np.array(fast),
        free_pages=free,
        capacity_pages=capacity,
        move_pages=moves,
        latencies_ns=np.array(latencies_ns),
    )


def seen(stretch: int, fast: list[int], free: int = 0) -> Observation:
    """Four cells of ten pages; the fast tier has room for two. Stretch k accesses cell k only."""
    accesses = [float(cell == stretch) for cell in range(4)]
    return observation(accesses, fast, free=free, capacity=20, stretch=stretch)
