# SPDX-License-Identifier: Apache-2.0
"""In any span of T ns, the token bucket grants at most the bytes that the bandwidth allows in
T + SLACK_NS. A caller that never pauses for longer than SLACK_NS gets the whole bandwidth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.migrate.token_bucket import SLACK_NS, TokenBucket

NS_PER_BYTE = 4
RATE = 1e9 / NS_PER_BYTE

TAKES = st.lists(
    st.tuples(st.integers(0, 4 * SLACK_NS), st.integers(0, 2_000_000)), min_size=1, max_size=30
)


@given(TAKES)
def test_no_span_of_time_grants_more_than_its_bandwidth(takes: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(RATE)
    now_ns, times, ends = 10 * SLACK_NS, [], []
    for gap_ns, size in takes:
        now_ns += gap_ns
        times.append(now_ns)
        ends.append(bucket.take(size, now_ns))
    assert ends == sorted(ends)
    for first in range(len(takes)):
        spent_ns = 0
        for last in range(first, len(takes)):
            spent_ns += takes[last][1] * NS_PER_BYTE
            assert ends[last] >= times[first] - SLACK_NS + spent_ns


@given(st.lists(st.tuples(st.integers(0, SLACK_NS), st.integers(1, 100_000)), max_size=50))
def test_a_busy_user_makes_up_for_delays(turns: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(RATE)
    begin_ns = 10 * SLACK_NS
    end_ns = bucket.take(0, begin_ns)
    for late_ns, size in turns:
        end_ns = bucket.take(size, end_ns + late_ns)
    assert end_ns == begin_ns + NS_PER_BYTE * sum(size for _, size in turns)


def test_a_pause_saves_no_bandwidth() -> None:
    bucket = TokenBucket(RATE)
    bucket.take(1000, 10 * SLACK_NS)
    later_ns = 1000 * SLACK_NS
    assert bucket.take(1000, later_ns) == later_ns + 1000 * NS_PER_BYTE


def test_bandwidth_that_nothing_could_use_is_lost() -> None:
    bucket = TokenBucket(RATE)
    end_ns = bucket.take(1000, 10 * SLACK_NS)
    wanted_ns = end_ns + SLACK_NS // 2
    late_ns = wanted_ns + SLACK_NS // 4
    assert bucket.take(1000, late_ns, wanted_ns) == wanted_ns + 1000 * NS_PER_BYTE


@given(st.integers(1, 50), st.integers(1, 10_000), st.floats(0.0, 1.5))
def test_an_interrupted_transfer_gives_back_its_other_pieces(
    count: int, size: int, share: float
) -> None:
    """The transfer is interrupted after `share` times its duration; if `share` is above 1, after
    its end."""
    bucket = TokenBucket(RATE)
    began_ns = 10 * SLACK_NS
    end_ns = bucket.take(count * size, began_ns)
    now_ns = began_ns + round(share * (end_ns - began_ns))
    left = bucket.give_back(count, size, end_ns - now_ns)
    assert 0 <= left <= count
    transferred_ns = (count - left) * size * NS_PER_BYTE
    assert began_ns + transferred_ns >= min(now_ns, end_ns)  # a piece that has begun is finished
    assert left == 0 or began_ns + transferred_ns < now_ns + size * NS_PER_BYTE
    assert bucket.take(0, began_ns) == pytest.approx(began_ns + transferred_ns, abs=1)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_bandwidth_must_be_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="bytes per second"):
        TokenBucket(rate)
