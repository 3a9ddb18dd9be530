# SPDX-License-Identifier: Apache-2.0
"""Curves (slowdown by budget) of processes that use swap, computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.records import PAGE_BYTES
from sentineld.plan.division import Curve
from sentineld.policies.temperature.curve import POINTS_MAX, curve_of_rates, differ
from sentineld.policies.temperature.heat import SLACK_SHARE

FAULT_S = 1e-3
GROUPS = st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 10**6)), max_size=300)


def curve(groups: list[tuple[float, int]], fixed_bytes: int = 0) -> Curve:
    rates = np.array([rate for rate, _ in groups], np.float64)
    pages = np.array([count for _, count in groups], np.int64)
    return curve_of_rates(rates, pages, FAULT_S, fixed_bytes)


def budget(pages: int) -> int:
    """The budget with which this number of pages is resident after page-outs."""
    return int(np.ceil(pages / (1 - SLACK_SHARE))) * PAGE_BYTES


def test_the_hottest_pages_are_resident_first() -> None:
    # There are 31 pages, each of which causes 2 faults per second if it is not resident, and 62
    # pages, each of which causes 1. The other 1000 pages are not used. A fault takes 1 ms
    # (FAULT_S), so without memory, the slowdown is 1 + (31 x 2 + 62 x 1) x 0.001.
    found = curve([(1.0, 62), (0.0, 1000), (2.0, 31), (3.0, 0)])
    assert budget(31) == 32 * PAGE_BYTES
    assert found.budgets_bytes == (0, 32 * PAGE_BYTES, 96 * PAGE_BYTES)
    assert found.slowdowns == pytest.approx((1.124, 1.062, 1.0))
    assert found.at([64 * PAGE_BYTES])[0] == pytest.approx(1.031)


def test_memory_that_cannot_be_paged_out_comes_first() -> None:
    found = curve([(2.0, 31)], 31 * PAGE_BYTES)
    assert found.budgets_bytes == (0, 32 * PAGE_BYTES, 64 * PAGE_BYTES)
    assert found.slowdowns == pytest.approx((1.062, 1.062, 1.0))


def test_idle_processes_need_no_memory() -> None:
    assert curve([(0.0, 1000)], 31 * PAGE_BYTES) == Curve((0,), (1.0,))
    assert curve([]) == Curve((0,), (1.0,))


@given(GROUPS, st.integers(0, 10**9))
def test_more_memory_never_slows_the_processes_down(
    groups: list[tuple[float, int]], fixed_bytes: int
) -> None:
    found = curve(groups, fixed_bytes)
    assert len(found.budgets_bytes) <= POINTS_MAX + 2
    assert list(found.budgets_bytes) == sorted(set(found.budgets_bytes))
    assert np.all(np.diff(found.slowdowns) <= 0)
    used = sum(pages for rate, pages in groups if rate > 0)
    working_set = budget(used + -(-fixed_bytes // PAGE_BYTES))
    assert found.at([working_set, 2 * working_set]).tolist() == [1.0, 1.0]
    faults_per_s = sum(rate * pages for rate, pages in groups)
    assert found.at([0])[0] == pytest.approx(1 + faults_per_s * FAULT_S)
    # The number of points is limited. Between its points, the curve lies above the exact curve.
    hottest = sorted(groups, reverse=True)
    outside = sum(rate * pages for rate, pages in hottest[len(hottest) // 2 :])
    inside = sum(pages for rate, pages in hottest[: len(hottest) // 2] if rate > 0)
    held = found.at([budget(inside + -(-fixed_bytes // PAGE_BYTES))])[0]
    exact = 1 + outside * FAULT_S
    # Both the curve's budgets and fixed_bytes are rounded to whole pages.
    rounding = 2 * FAULT_S * max((rate for rate, _ in groups), default=0.0) + 1e-9
    assert exact - rounding <= held <= exact + faults_per_s * FAULT_S / POINTS_MAX + rounding


def test_only_curves_with_other_slowdowns_differ() -> None:
    one = Curve((0, 100), (2.0, 1.0))
    assert not differ(one, Curve((0, 50, 100), (2.0, 1.5, 1.0)), 0.01)
    assert differ(one, Curve((0, 50, 100), (2.0, 1.4, 1.0)), 0.05)
    assert not differ(one, Curve((0, 50, 100), (2.0, 1.4, 1.0)), 0.1)
    assert differ(one, Curve((0, 200), (2.0, 1.0)), 0.1)
