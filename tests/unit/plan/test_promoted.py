# SPDX-License-Identifier: Apache-2.0
"""The ranges of arena pages that a plan promotes, compared with the set of all these pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import MOVE_DTYPE, Space
from sentineld.plan.promoted import in_ranges, promoted_ranges
from tests.unit.plan.toys import PAGE, move, toy_plan

MOVES = st.tuples(
    st.sampled_from([Space.ARENA, Space.HEAP]),
    st.integers(0, 1),
    st.integers(0, 9),
    st.integers(1, 4),
)


@given(st.lists(MOVES))
def test_ranges_hold_the_promoted_arena_pages(
    moves: list[tuple[Space, int, int, int]],
) -> None:
    rows = [move(0, 0, 0, space, tier, page, pages) for space, tier, page, pages in moves]
    found = promoted_ranges(replace(toy_plan(), moves=np.array(rows, MOVE_DTYPE)), PAGE)
    expected = {
        one
        for space, tier, page, pages in moves
        if (space, tier) == (Space.ARENA, 0)
        for one in range(page, page + pages)
    }
    assert set(np.flatnonzero(in_ranges(np.arange(20), found)).tolist()) == expected
    assert (found[1:, 0] > found[:-1, 1]).all()
