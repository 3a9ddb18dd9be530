# SPDX-License-Identifier: Apache-2.0
"""Positions at which a group may change its tier, and the limits of a program."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.timing import timing_of
from sentineld.policies.lp import problem
from sentineld.policies.lp.groups import groups_of
from sentineld.policies.lp.problem import Limits, changes_of
from tests.unit.policies.rivals.laps import Life, lap, moving


def changes(stretches: int, *lives: Life, generous: bool = False) -> list[list[int]]:
    """For each of the lives, the positions after which its tensor may change its tier. No two of
    the tensors are in the same group."""
    groups = groups_of(lap(stretches, *lives), timing_of(moving(1.0)))
    assert len(groups.pages) == len(lives)
    return [found.tolist() for found in changes_of(groups, generous)]


@pytest.mark.parametrize(
    ("page_ns", "generous", "pages"),
    [(10.0, False, 0.0), (10.0, True, 1.0), (float("inf"), True, 0.0)],
)
def test_only_a_bound_has_a_page_in_flight(page_ns: float, generous: bool, pages: float) -> None:
    limits = Limits(np.ones(3), page_ns, page_ns, 9, generous=generous)
    assert limits.in_flight_pages == pages


def test_changes_are_dense_next_to_uses_and_sparse_between_them() -> None:
    # The tensor is used in stretches 0 and 20 of 40. A grid is the set of positions after which a
    # group may change its tier (see GRIDS in problem.py). The finest grid has the position of a use
    # and the three positions after it. Further on, the distance to the use grows by 40 % (at least
    # by 1) from one position of the grid to the next.
    (found,) = changes(40, Life(16, (0, 20)))
    first = [at for at in found if at < 20]
    assert first[:5] == [0, 1, 2, 3, 4]
    assert first[-3:] == [17, 18, 19]
    assert [19 - at for at in reversed(first)] == first  # as dense before a use as after it
    assert len(first) < 20
    # The gap from the last use to the first use of the next step has the same grid as the gap
    # between the two uses.
    assert [at - 20 for at in found if at >= 20] == first


def test_a_transient_group_changes_after_its_birth_and_before_its_death() -> None:
    # The tensor lives in stretches 2 to 7 and is used in stretches 2 and 5, which are positions 0
    # and 3 of its life.
    life = Life(16, (2, 5), (2, 7))
    assert changes(9, life) == [[1, 2, 3, 4]]
    assert changes(9, life, generous=True) == [[0, 1, 2, 3, 4]]
    assert changes(9, Life(16, (2, 3), (2, 3))) == [[]]


def test_a_large_program_takes_a_coarser_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(16, (0, 30))
    fine = changes(60, life)[0]
    monkeypatch.setattr(problem, "COLUMNS_MAX", (2 * len(fine), 10_000))
    assert changes(60, life)[0] == fine
    monkeypatch.setattr(problem, "COLUMNS_MAX", (2 * len(fine) - 1, 10_000))
    coarse = changes(60, life)[0]
    monkeypatch.setattr(problem, "COLUMNS_MAX", (1, 1))
    coarsest = changes(60, life)[0]
    assert len(fine) > len(coarse) > len(coarsest) >= 4


@given(
    st.sets(st.integers(0, 29), min_size=1),
    st.booleans(),
    st.booleans(),
)
def test_any_group_may_change_next_to_each_use(
    uses: set[int], persistent: bool, generous: bool
) -> None:
    used = tuple(sorted(uses))
    lives = None if persistent else (used[0], used[-1])
    (found,) = changes(30, Life(16, used, lives), generous=generous)
    assert found == sorted(set(found))
    length = 30 if persistent else used[-1] - used[0] + 1
    assert all(0 <= at < length for at in found)
    first = 0 if persistent else used[0]
    for one, following in pairwise(used):
        after, before = one - first, following - 1 - first
        for at in (after, before):
            inside = persistent or (0 if generous else 1) <= at < length - 1
            assert (at in found) == inside
