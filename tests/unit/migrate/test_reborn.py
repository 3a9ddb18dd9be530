# SPDX-License-Identifier: Apache-2.0
"""Pages that a call moved and that the process dropped during this call.

page     0 1 2 3 4 5 6 7
region   [ fast ][ slow ]
moved      1 2 3 4     7
dropped    [   )   [   )     pages 1 and 2, and 5 and 6
"""

from __future__ import annotations

import numpy as np

from sentineld.migrate.reborn import back_to_their_region, dropped_pages
from sentineld.model.plan import Region, Space
from sentineld.plan.expected import DROP_DTYPE

PAGE = 4096
REGIONS = (
    Region(0, 4 * PAGE, 0, "fast"),
    Region(4 * PAGE, 4 * PAGE, 1, "slow"),
    Region(8 * PAGE, 4 * PAGE, None, "first touch"),
)


def test_only_dropped_pages_are_found() -> None:
    moved = np.array([1, 2, 3, 4, 7])
    drops = np.array([(0, PAGE, 2 * PAGE), (1, 5 * PAGE, 2 * PAGE)], DROP_DTYPE)
    assert dropped_pages(moved, drops, PAGE).tolist() == [1, 2]
    assert dropped_pages(moved, drops[:0], PAGE).tolist() == []
    assert dropped_pages(moved[:0], drops, PAGE).tolist() == []


def test_pages_of_slow_regions_are_moved_back_in_ranges() -> None:
    rows = back_to_their_region(np.array([2, 3, 4, 5, 7, 9]), REGIONS, PAGE)
    assert rows[["space", "tier", "offset", "bytes"]].tolist() == [
        (Space.ARENA, 1, 4 * PAGE, 2 * PAGE),
        (Space.ARENA, 1, 7 * PAGE, PAGE),
    ]
    assert len(back_to_their_region(np.array([0, 1]), REGIONS, PAGE)) == 0
