# SPDX-License-Identifier: Apache-2.0
"""Pages that were dropped, and perhaps born again, during a move_pages call.

The process keeps running during a call. If a tensor dies and the next one is born on its pages
before the call reaches them, the call moves pages of the new tensor. The functions of this
module have no side effects.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.migrate.pending import Pages
from sentineld.migrate.syscalls import page_ranges
from sentineld.model.arrays import Table
from sentineld.model.plan import MOVE_DTYPE, Region, Space


def dropped_pages(moved: Pages, drops: Table, page_bytes: int) -> Pages:
    """The moved arena pages that may have been dropped during the move_pages call.

    drops: DROP_DTYPE of plan/expected.py, the ranges that may have been dropped during the call.
    """
    first = drops["offset"].astype(np.int64) // page_bytes
    last = first + drops["bytes"].astype(np.int64) // page_bytes
    dropped = (moved[:, None] >= first) & (moved[:, None] < last)
    found: Pages = moved[dropped.any(axis=1)]
    return found


def back_to_their_region(pages: Pages, regions: Sequence[Region], page_bytes: int) -> Table:
    """MOVE_DTYPE rows that demote pages of the arena to the tier of their region. Pages in regions
    of the fastest tier, or in no region, get no row."""
    rows = []
    for region in regions:
        begin = region.offset // page_bytes
        end = begin + region.bytes // page_bytes
        inside = pages[(pages >= begin) & (pages < end)]
        if region.tier:
            rows += [
                (0, 0, 0, Space.ARENA, region.tier, start * page_bytes, count * page_bytes)
                for start, count in page_ranges(inside, 1)
            ]
    return np.array(rows, MOVE_DTYPE)
