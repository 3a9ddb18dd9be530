# SPDX-License-Identifier: Apache-2.0
"""Concatenated ranges of integers, and the union of ranges."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.ranges import covered, ranges, union


def test_empty_ranges_contribute_nothing() -> None:
    assert ranges(np.array([5, 8, 3]), np.array([2, 0, 1])).tolist() == [5, 6, 3]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5))),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9))),
)
def test_the_covered_part_of_each_range(
    pairs: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    first = np.array([begin for begin, _ in pairs], np.int64)
    disjoint = union(first, first + np.array([size for _, size in pairs], np.int64))
    members = {one for begin, size in pairs for one in range(begin, begin + size)}
    begin = np.array([begin for begin, _ in asked], np.int64)
    found = covered(begin, begin + np.array([size for _, size in asked], np.int64), disjoint)
    assert found.tolist() == [len(members & set(range(at, at + size))) for at, size in asked]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5))), st.integers(0, 3))
def test_a_union_joins_ranges_that_are_close(pairs: list[tuple[int, int]], gap: int) -> None:
    given_first = np.array([first for first, _ in pairs], np.int64)
    first, past = union(
        given_first, given_first + np.array([size for _, size in pairs], np.int64), gap
    )
    members = {one for begin, size in pairs for one in range(begin, begin + size)}
    found = ranges(first, past - first).tolist()
    assert members <= set(found)
    assert found == sorted(set(found))
    assert set(first.tolist()) | set((past - 1).tolist()) <= members
    assert (first[1:] > past[:-1] + gap).all()
    if not gap:
        assert set(found) == members
