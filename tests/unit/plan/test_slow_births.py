# SPDX-License-Identifier: Apache-2.0
"""On paged tiers, pages that are born slow are evicted after the stretch of their birth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.plan.slow_births import evict_slow_births
from tests.unit.plan.toys import PAGE, move, toy_plan, toy_profile


def moves(plan: Plan) -> list[tuple[int, int, int, int, int]]:
    """(boundary, deadline, tier, first page, pages) of the arena's moves."""
    found = evict_slow_births(plan, toy_profile()).moves
    return [
        (
            int(row["boundary"]),
            int(row["deadline"]),
            int(row["tier"]),
            int(row["offset"]) // PAGE,
            int(row["bytes"]) // PAGE,
        )
        for row in found[found["space"] == Space.ARENA]
    ]


def test_a_slow_birth_is_evicted_at_the_next_boundary() -> None:
    # The gradient is born in stretch 2, in the region of slow births: pages 3 and 4.
    assert moves(toy_plan()) == [(3, 0, 1, 3, 2)]


def test_pages_that_are_promoted_at_that_boundary_stay() -> None:
    plan = toy_plan()
    rows = [*plan.moves.tolist(), move(3, 0, 2, Space.ARENA, 0, 3, 1)]
    plan = replace(plan, moves=np.array(rows, MOVE_DTYPE))
    assert moves(plan) == [(3, 0, 1, 4, 1), (3, 0, 0, 3, 1)]


def test_fast_births_and_the_heap_stay() -> None:
    plan = toy_plan()
    layout = replace(
        plan.layout, regions=tuple(replace(region, tier=0) for region in plan.layout.regions)
    )
    found = evict_slow_births(replace(plan, layout=layout), toy_profile())
    assert np.array_equal(found.moves, plan.moves)
