# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as one member in the division of a shared budget.

Some cases are checked by hand, others are compared with an exhaustive search.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.plan.division import Curve, Member, Terms
from sentineld.plan.ranks import RANKS_WITH_CURVE_MAX, as_one, split

PAGE = 4096
MIB = 1 << 20
NO_LIMITS = Terms()
LINE = {0: 2.0, 64: 1.0}
CLIFF = {0: 2.0, 39: 2.0, 40: 1.0}


def rank(points: dict[int, float] | None, terms: Terms = NO_LIMITS) -> Member:
    """A rank with this curve; budgets in MiB."""
    if points is None:
        return Member(terms)
    return Member(terms, Curve(tuple(mib * MIB for mib in points), tuple(points.values())))


def divided(share_bytes: int, ranks: list[Member]) -> list[int]:
    return split(share_bytes, ranks, as_one(ranks))


def slowdown(member: Member, share_bytes: int) -> float:
    assert member.curve is not None
    return float(member.curve.at([share_bytes])[0])


def test_equal_ranks_need_twice_the_memory_of_one() -> None:
    job = as_one([rank(LINE), rank(LINE)])
    assert job.curve is not None
    assert job.curve.budgets_bytes == (0, 128 * MIB)
    assert job.curve.slowdowns == (2.0, 1.0)
    assert divided(64 * MIB, [rank(LINE), rank(LINE)]) == [32 * MIB, 32 * MIB]


def test_the_rank_that_needs_more_gets_more() -> None:
    # With x MiB, the slowdowns of the ranks are 2 - x / 64 and 2 - x / 32. Both are 1.5 if the
    # first rank gets 32 MiB and the second one 16 MiB.
    ranks = [rank(LINE), rank({0: 2.0, 32: 1.0})]
    assert divided(48 * MIB, ranks) == [32 * MIB, 16 * MIB]
    assert slowdown(as_one(ranks), 48 * MIB) == pytest.approx(1.5)


def test_a_rank_that_cannot_be_fast_gets_only_what_is_useful() -> None:
    # The second rank's slowdown is never below 1.5. The first rank reaches this slowdown with 32
    # MiB, so more memory for it does not make the job faster.
    job = as_one([rank(LINE), rank({0: 2.0, 16: 1.5})])
    assert job.curve is not None
    assert job.curve.budgets_bytes[-1] == 48 * MIB
    assert job.curve.slowdowns[-1] == 1.5


def test_the_curve_of_a_job_keeps_flat_parts() -> None:
    job = as_one([rank(CLIFF), rank(CLIFF)])
    assert [slowdown(job, mib * MIB) for mib in (0, 40, 78, 80)] == [2.0, 2.0, 2.0, 1.0]


def test_without_all_curves_the_shares_are_equal() -> None:
    ranks = [rank(LINE), rank(None)]
    assert as_one(ranks).curve is None
    assert divided(64 * MIB, ranks) == pytest.approx([32 * MIB, 32 * MIB], abs=PAGE)
    assert as_one([rank(LINE), rank({0: math.inf, 64: math.inf})]).curve is None


def test_weights_and_limits_are_those_of_the_job() -> None:
    ranks = [rank(LINE, Terms(2.0, 4 * MIB, 8 * MIB)), rank(LINE, Terms(1.0, 0, 16 * MIB))]
    assert as_one(ranks).terms == Terms(2.0, 4 * MIB, 24 * MIB)
    assert as_one([ranks[0], rank(LINE)]).terms.most_bytes is None
    first, second = divided(20 * MIB, ranks)
    assert 4 * MIB <= first <= 8 * MIB
    assert second <= 16 * MIB


def test_a_rank_gets_no_more_than_its_maximum() -> None:
    # The first rank may have at most 32 MiB, with which its slowdown is 1.5. So the slowdown of the
    # job is at least 1.5.
    ranks = [rank(LINE, Terms(most_bytes=32 * MIB)), rank({0: 2.0, 32: 1.0})]
    job = as_one(ranks).curve
    assert job is not None
    assert (job.budgets_bytes[-1], job.slowdowns[-1]) == (48 * MIB, 1.5)
    assert divided(48 * MIB, ranks) == [32 * MIB, 16 * MIB]


def test_a_job_with_many_ranks_has_no_curve() -> None:
    assert as_one([rank(LINE)] * RANKS_WITH_CURVE_MAX).curve is not None
    many = [rank(LINE)] * (RANKS_WITH_CURVE_MAX + 1)
    assert as_one(many).curve is None
    assert divided(33 * MIB, many) == pytest.approx([MIB] * 33, abs=PAGE)


def test_a_single_rank_is_unchanged() -> None:
    only = rank(LINE, Terms(3.0))
    assert as_one([only]) is only
    assert divided(5 * MIB, [only]) == [5 * MIB]


curves = st.lists(st.integers(0, 12), min_size=2, max_size=6, unique=True).flatmap(
    lambda budgets: st.lists(
        st.integers(4, 12) | st.just(math.inf), min_size=len(budgets), max_size=len(budgets)
    ).map(
        lambda slowdowns: Curve(
            tuple(mib * MIB for mib in sorted(budgets)), tuple(one / 4 for one in slowdowns)
        )
    )
)


@given(st.lists(curves, min_size=2, max_size=3), st.integers(0, 40))
def test_no_other_split_is_better(found: list[Curve], share_mib: int) -> None:
    ranks = [Member(Terms(), curve) for curve in found]
    job, share_bytes = as_one(ranks), share_mib * MIB
    shares = divided(share_bytes, ranks)
    assert sum(shares) <= share_bytes
    got = max(slowdown(one, share) for one, share in zip(ranks, shares, strict=True))
    # Shares are whole pages, so a rank can get up to a page less than it needs.
    more = [slowdown(one, share + PAGE) for one, share in zip(ranks, shares, strict=True)]
    least = min(
        (
            max(slowdown(ranks[0], one * MIB), rest)
            for one in range(share_mib + 1)
            for rest in [best_of(ranks[1:], share_mib - one)]
        ),
    )
    if job.curve is None:
        return
    predicted = slowdown(job, share_bytes)
    assert predicted <= least + 1e-9
    if math.isfinite(predicted):
        assert max(more) <= predicted + 1e-9
    else:
        assert not math.isfinite(got) or not math.isfinite(least)


def best_of(ranks: list[Member], share_mib: int) -> float:
    """The least slowdown of a job with these ranks, by trying all whole MiB."""
    if len(ranks) == 1:
        return slowdown(ranks[0], share_mib * MIB)
    return min(
        max(slowdown(ranks[0], one * MIB), best_of(ranks[1:], share_mib - one))
        for one in range(share_mib + 1)
    )
