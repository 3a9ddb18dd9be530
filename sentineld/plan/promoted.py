# SPDX-License-Identifier: Apache-2.0
"""The arena pages that a plan promotes in each step."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan, Space


def promoted_ranges(plan: Plan, page_bytes: int) -> Integers:
    """(N, 2): first page and end of each range of promoted pages, sorted and disjoint."""
    moves = plan.moves[(plan.moves["space"] == Space.ARENA) & (plan.moves["tier"] == 0)]
    moves = moves[np.argsort(moves["offset"], kind="stable")]
    first = moves["offset"].astype(np.int64) // page_bytes
    end = np.maximum.accumulate(first + moves["bytes"].astype(np.int64) // page_bytes)
    separate = first[1:] > end[:-1]
    return np.stack(
        [
            np.concatenate([first[:1], first[1:][separate]]),
            np.concatenate([end[:-1][separate], end[-1:]]),
        ],
        axis=1,
    )


def in_ranges(pages: Integers, found: Integers) -> Mask:
    """(P,): whether each page lies in one of the ranges that promoted_ranges() returned."""
    at = np.searchsorted(found[:, 0], pages, side="right") - 1
    inside: Mask = (at >= 0) & (pages < np.append(found[:, 1], 0)[at])
    return inside
