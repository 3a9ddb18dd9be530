# SPDX-License-Identifier: Apache-2.0
"""On paged tiers, pages are evicted after the stretch of their last use."""

from __future__ import annotations

import numpy as np

from sentineld.model.plan import Space
from sentineld.plan.after_use import after_use
from tests.unit.plan.test_expected import PAGE, plan, profile

TENSOR = (4, Space.HEAP)
"""A persistent tensor of ten pages, from the heap's page 16 on; it is used in stretches 0 and 2."""


def moves(
    boundary: int, deadline: int, tier: int, first: int = 16, pages: int = 10
) -> list[tuple[int, int]]:
    rows = [(boundary, deadline, *TENSOR, tier, first * PAGE, pages * PAGE)]
    found = after_use(plan(rows), profile()).moves
    return [(int(row["boundary"]), int(row["deadline"])) for row in found]


def test_a_demotion_in_the_stretch_of_a_use_waits_for_its_end() -> None:
    assert moves(2, 3, tier=1) == [(3, 0)]
    assert moves(0, 1, tier=1) == [(1, 2)]


def test_other_moves_stay() -> None:
    assert moves(1, 2, tier=1) == [(1, 2)]
    assert moves(3, 0, tier=1) == [(3, 0)]
    assert moves(2, 3, tier=0) == [(2, 3)]
    assert moves(2, 3, tier=1, first=40) == [(2, 3)]


def test_the_moves_stay_sorted_with_demotions_first() -> None:
    rows = [
        (2, 3, *TENSOR, 1, 16 * PAGE, 2 * PAGE),
        (3, 0, *TENSOR, 0, 20 * PAGE, PAGE),
        (3, 0, *TENSOR, 1, 22 * PAGE, PAGE),
    ]
    found = after_use(plan(rows), profile()).moves
    assert found["boundary"].tolist() == [3, 3, 3]
    assert found["tier"].tolist() == [1, 1, 0]
    assert np.array_equal(np.sort(found["offset"]), np.sort([row[5] for row in rows]))
