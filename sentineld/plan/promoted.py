# SPDX-License-Identifier: Apache-2.0
"""The arena pages that a plan promotes in each step."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan, Space
from sentineld.model.ranges import union


def promoted_ranges(plan: Plan, page_bytes: int) -> Integers:
    """(N, 2): first page and end of each range of promoted pages, sorted and disjoint."""
    moves = plan.moves[(plan.moves["space"] == Space.ARENA) & (plan.moves["tier"] == 0)]
    first = moves["offset"].astype(np.int64) // page_bytes
    end = first + moves["bytes"].astype(np.int64) // page_bytes
    return np.stack(union(first, end), axis=1)


def in_ranges(pages: Integers, found: Integers) -> Mask:
    """(P,): whether each page lies in one of the ranges that promoted_ranges() returned."""
    at = np.searchsorted(found[:, 0], pages, side="right") - 1
    inside: Mask = (at >= 0) & (pages < np.append(found[:, 1], 0)[at])
    return inside
