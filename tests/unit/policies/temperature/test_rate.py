# SPDX-License-Identifier: Apache-2.0
"""The rate limit of moves."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from sentineld.policies.temperature.rate import RateLimit


def test_unused_pages_accumulate_up_to_the_burst() -> None:
    limit = RateLimit(100.0, 50.0)
    assert limit.grant(0.0, 80) == 50
    assert limit.grant(0.1, 80) == 10
    assert limit.grant(0.1, 4) == 4
    assert limit.grant(0.1, 80) == 16  # 6 left over, and 10 for 0.1 s
    assert limit.grant(100.0, 80) == 50
    assert limit.grant(0.0, -3) == 0


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 900)), min_size=1, max_size=20),
    st.integers(0, 200),
    st.integers(0, 400),
)
def test_no_period_has_more_than_its_rate_and_one_burst(
    calls: list[tuple[int, int]], rate: int, burst: int
) -> None:
    limit = RateLimit(float(rate), float(burst))
    now, granted = 0.0, []
    for eighths, wanted in calls:
        now += eighths / 8
        found = limit.grant(eighths / 8, wanted)
        assert 0 <= found <= wanted
        granted.append((now, found))
    for low, high in combinations(range(len(granted) + 1), 2):
        part = granted[low:high]
        assert sum(pages for _, pages in part) <= burst + rate * (part[-1][0] - part[0][0])
