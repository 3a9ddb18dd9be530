# SPDX-License-Identifier: Apache-2.0
"""The choice of pages to move: cases computed by hand, and properties of any choice."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.policies.temperature.choice import Chooser

TEN = np.full(4, 10)
"""Four units of ten pages each."""


def chosen(
    chooser: Chooser, temperature: list[int], fast: list[int], capacity: int
) -> list[object]:
    pages = np.array(fast)
    choice = chooser.choose(np.array(temperature), pages, TEN - pages, capacity)
    return [units.tolist() for units in choice]


def test_hot_slow_pages_rise_and_cold_fast_pages_fall() -> None:
    # The units are in buckets 18, 8, 2 and 0, because a bucket has 5 temperatures (BUCKET_WIDTH in
    # buckets.py). The first two units fit into 25 pages, so they are hot. Unit 1 is already fast.
    assert chosen(Chooser(4), [90, 40, 12, 3], [0, 10, 10, 10], 25) == [[0], [3, 2]]


def test_the_hottest_rise_first() -> None:
    assert chosen(Chooser(4), [40, 90, 60, 0], [0, 0, 5, 0], 30) == [[1, 2, 0], []]


def test_pages_slightly_below_the_hot_buckets_stay() -> None:
    # The hot buckets are 18 to 7: bucket 7 fits, too, because it is empty. Unit 2 is in bucket 6,
    # directly below them.
    assert chosen(Chooser(4, margin=1), [90, 40, 30, 3], [0, 10, 10, 10], 25) == [[0], [3]]
    assert chosen(Chooser(4, margin=0), [90, 40, 30, 3], [0, 10, 10, 10], 25) == [[0], [3, 2]]


def test_moved_pages_rest_before_they_move_back() -> None:
    chooser = Chooser(4, rest=2)
    chooser.moved(np.array([0]), np.array([1]))
    back = [3, 90, 0, 0], [10, 0, 0, 0], 15
    assert chosen(chooser, *back) == [[], []]
    assert chosen(chooser, *back) == [[], []]
    assert chosen(chooser, *back) == [[1], [0]]


def test_new_units_need_no_rest() -> None:
    chooser = Chooser(2, rest=2)
    chooser.moved(np.array([0]), np.array([1]))
    # The two earlier units become units 3 and 2; units 0 and 1 are new.
    chooser.carry(np.array([-1, -1, 1, 0]))
    assert chosen(chooser, [3, 90, 90, 3], [10, 0, 0, 10], 25) == [[1], [0]]


UNIT = st.tuples(st.integers(0, 100), st.integers(0, 8), st.integers(0, 8))


@given(st.lists(UNIT, max_size=12), st.integers(0, 90), st.integers(0, 3))
def test_no_unit_rises_and_falls_and_the_hot_set_fits(
    units: list[tuple[int, int, int]], capacity: int, margin: int
) -> None:
    temperature, fast, slow = np.array(units, np.int64).reshape(-1, 3).T
    rising, falling = Chooser(len(units), margin).choose(temperature, fast, slow, capacity)
    assert not set(rising.tolist()) & set(falling.tolist())
    assert (slow[rising] > 0).all()
    assert (fast[falling] > 0).all()
    if len(rising):
        hot = temperature // 5 >= (temperature // 5)[rising].min()
        assert (fast + slow)[hot].sum() <= capacity
    assert (np.diff(temperature[rising]) <= 0).all()
    assert (np.diff(temperature[falling]) >= 0).all()


@given(st.lists(st.lists(st.integers(0, 100), min_size=4, max_size=4), max_size=30))
def test_no_page_moves_back_within_its_rest(scans: list[list[int]]) -> None:
    rest = 3
    chooser = Chooser(4, rest=rest)
    fast = np.zeros(4, np.int64)
    moved_at = np.full(4, -rest - 1)
    for now, temperature in enumerate(scans):
        choice = chooser.choose(np.array(temperature), fast, TEN - fast, 20)
        chooser.moved(*choice)
        for units in choice:
            assert (now - moved_at[units] > rest).all()
            moved_at[units] = now
        fast[choice.rising], fast[choice.falling] = 10, 0
