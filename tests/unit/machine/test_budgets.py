# SPDX-License-Identifier: Apache-2.0
"""Budgets of several sessions on one fast tier."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.machine.budgets import Budgets

GIB = 1 << 30


def test_the_sum_of_budgets_is_limited() -> None:
    budgets = Budgets(8 * GIB)
    budgets.reserve("a", 5 * GIB)
    with pytest.raises(SentinelError) as refused:
        budgets.reserve("b", 4 * GIB)
    assert refused.value.code == "budget-too-large"
    assert str(refused.value) == (
        "the budget of 4.0 GiB exceeds the 3.0 GiB that are left of the fast tier's 8.0 GiB:"
        " other sessions have budgets of 5.0 GiB (set a smaller budget, or a share such as 20%)"
    )
    budgets.reserve("b", 3 * GIB)
    budgets.settle("a", 0)
    budgets.reserve("b", 8 * GIB)
    with pytest.raises(SentinelError, match=r"of 9.0 GiB exceeds the fast tier's 8.0 GiB "):
        budgets.reserve("b", 9 * GIB)


def test_a_budget_shrinks_only_when_its_plan_is_live() -> None:
    budgets = Budgets(8 * GIB)
    budgets.reserve("a", 6 * GIB)
    budgets.reserve("a", 2 * GIB)
    with pytest.raises(SentinelError):
        budgets.require("b", 3 * GIB)
    budgets.settle("a", 2 * GIB)
    budgets.require("b", 6 * GIB)


def test_a_budget_grows_as_far_as_there_is_room() -> None:
    budgets = Budgets(8 * GIB)
    budgets.reserve("a", 5 * GIB)
    assert budgets.grow("b", 4 * GIB) == budgets.held_bytes("b") == 3 * GIB
    assert budgets.grow("b", 2 * GIB) == 3 * GIB
    budgets.settle("a", GIB)
    assert budgets.grow("b", 4 * GIB) == 4 * GIB
    assert budgets.grow("c", 0) == budgets.held_bytes("c") == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 12))))
def test_the_reserved_budgets_never_exceed_the_capacity(
    calls: list[tuple[str, bool, int]],
) -> None:
    budgets, held = Budgets(10), dict.fromkeys("abc", 0)
    for holder, reserves, size in calls:
        if reserves:
            fits = size + sum(held.values()) - held[holder] <= 10
            try:
                budgets.reserve(holder, size)
            except SentinelError:
                assert not fits
            else:
                assert fits
                held[holder] = max(held[holder], size)
        else:
            held[holder] = min(held[holder], size)
            budgets.settle(holder, held[holder])
        assert sum(held.values()) <= 10
