# SPDX-License-Identifier: Apache-2.0
"""Buckets of temperatures, and the hot set: the hottest buckets that fit into a limit."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sentineld.policies.temperature.buckets import BUCKETS, bucket_of, histogram, hottest_that_fit
from sentineld.policies.temperature.history import TEMPERATURE_MAX


def test_a_bucket_holds_five_temperatures() -> None:
    temperatures = np.array([0, 4, 5, 94, 95, TEMPERATURE_MAX])
    assert bucket_of(temperatures).tolist() == [0, 0, 1, 18, 19, 19]


def test_the_histogram_counts_pages() -> None:
    counts = histogram(np.array([0, 2, 2]), np.array([7, 1, 512]), 4)
    assert counts.tolist() == [7, 0, 513, 0]


def test_the_hot_buckets_are_the_hottest_that_fit() -> None:
    counts = np.array([100.0, 60.0, 0.0, 50.0])
    assert hottest_that_fit(counts, 49) == (4, 0)
    assert hottest_that_fit(counts, 109) == (2, 50)
    assert hottest_that_fit(counts, 110) == (1, 110)
    assert hottest_that_fit(counts, 1000) == (1, 110)
    assert hottest_that_fit(counts, 1000, lowest=0) == (0, 210)


@given(
    st.lists(st.tuples(st.integers(0, TEMPERATURE_MAX), st.integers(0, 600)), max_size=40),
    st.integers(0, 9000),
)
def test_the_hot_set_fits_and_no_further_bucket_does(
    units: list[tuple[int, int]], limit: int
) -> None:
    table = np.array(units, np.int64).reshape(-1, 2)
    bucket, pages = bucket_of(table[:, 0]), table[:, 1]
    counts = histogram(bucket, pages)
    assert len(counts) == BUCKETS
    hot = hottest_that_fit(counts, limit)
    assert hot.pages == pages[bucket >= hot.coldest].sum() <= limit
    assert hot.coldest == 1 or pages[bucket >= hot.coldest - 1].sum() > limit
