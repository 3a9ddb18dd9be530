# SPDX-License-Identifier: Apache-2.0
"""Addresses at which births reuse dead pages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.plan.packing import alive_together
from sentineld.policies.auto.reuse import reusing_offsets

MOMENTS = 24

TENSORS = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.integers(0, MOMENTS - 1),
        st.integers(0, MOMENTS - 1),
        st.booleans(),
    ),
    max_size=12,
)


@given(TENSORS, st.lists(st.integers(-5, 20), min_size=MOMENTS, max_size=MOMENTS), st.booleans())
def test_tensors_that_live_together_share_no_page(
    tensors: list[tuple[int, int, int, bool]], free: list[int], aligned: bool
) -> None:
    pages, birth, death, stay = (
        np.array([one[at] for one in tensors], kind)
        for at, kind in enumerate((np.int64, np.int64, np.int64, np.bool_))
    )
    units = np.where(pages >= 4, 4, 1) if aligned else np.ones(len(pages), np.int64)
    offsets, size = reusing_offsets(pages, birth, death, stay, np.array(free), units)
    assert size == int((offsets + pages).max(initial=0))
    assert (offsets >= 0).all()
    assert not (offsets % units).any()
    for at in range(len(tensors)):
        together = alive_together(birth, death, int(birth[at]), int(death[at]))
        shares = (offsets < offsets[at] + pages[at]) & (offsets[at] < offsets + pages)
        assert np.flatnonzero(together & shares).tolist() == [at]


@pytest.mark.parametrize(
    ("stay", "free", "expected"),
    [
        # The third tensor is born where the second one died: all pages there are still resident.
        ([True, True, True], 9, [0, 3, 3]),
        # The second tensor was moved away. Only the first tensor's pages are resident, so the third
        # tensor is born there.
        ([True, False, True], 9, [0, 3, 0]),
        # No dead page may be kept, so the tensors are packed as tightly as possible.
        ([True, True, True], 0, [0, 3, 0]),
    ],
)
def test_a_birth_goes_where_pages_are_resident(
    stay: list[bool], free: int, expected: list[int]
) -> None:
    # Moment:  0  1  2  3  4  5  6  7
    # 3 pages     |--------|
    # 2 pages        |--------|
    # 2 pages                    |--|
    pages, birth, death = np.array([3, 2, 2]), np.array([1, 2, 6]), np.array([4, 5, 7])
    units = np.ones(3, np.int64)
    offsets, _ = reusing_offsets(pages, birth, death, np.array(stay), np.full(8, free), units)
    assert offsets.tolist() == expected
