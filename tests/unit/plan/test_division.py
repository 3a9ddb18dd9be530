# SPDX-License-Identifier: Apache-2.0
"""The division of a shared budget: cases checked by hand, a comparison with an exhaustive search,
and the limits on the shares."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.plan import division
from sentineld.plan.division import (
    SLOWDOWN_MAX,
    Curve,
    Member,
    Terms,
    divide,
    equal_shares,
    permitted,
    spare_parts,
    total,
)

PAGE = 4096
MIB = 1 << 20


def member(
    points: dict[int, float] | None,
    weight: float = 1.0,
    least: int = 0,
    most: int | None = None,
) -> Member:
    """A session with this curve; budgets in MiB."""
    curve = None
    if points is not None:
        curve = Curve(tuple(mib * MIB for mib in points), tuple(points.values()))
    most_bytes = None if most is None else most * MIB
    return Member(Terms(weight, least * MIB, most_bytes), curve)


def in_mib(shares: list[int]) -> list[float]:
    """Shares in MiB, rounded, because equal shares are exact only to a page."""
    return [round(share / MIB, 1) for share in shares]


LINE = {0: 2.0, 64: 1.0}
"""1 MiB more reduces the slowdown by 1/64."""
HALF = {0: 1.5, 64: 1.0}
"""1 MiB more reduces the slowdown by 1/128, half as much as with LINE."""


def test_memory_goes_to_the_session_that_gains_most() -> None:
    # LINE gets all 64 MiB. The slowdown of HALF with its equal share, 32 MiB, is 1.25. A division
    # may raise this slowdown at most by the factor SLOWDOWN_MAX, 1.25, to 1.5625. Even without
    # memory, the slowdown of HALF is only 1.5.
    assert in_mib(divide(64 * MIB, [member(LINE), member(HALF)])) == [64, 0]
    # With weight 3, 1 MiB for HALF is worth 1.5 times as much as 1 MiB for LINE. The slowdown of
    # LINE with its equal share, 16 MiB, is 1.75, so it may be at most 2.19. Without memory, it is
    # only 2.
    assert in_mib(divide(64 * MIB, [member(LINE), member(HALF, weight=3)])) == [0, 64]


def test_no_session_becomes_much_slower_than_at_an_equal_share() -> None:
    # With equal shares, 32 MiB each, the slowdowns are 1.5 and 3. The first session's slowdown may
    # rise at most by the factor SLOWDOWN_MAX, 1.25, to 1.875. This is its slowdown with 8 MiB.
    steep = {0: 5.0, 64: 1.0}
    assert in_mib(divide(64 * MIB, [member(LINE), member(steep)])) == [8, 56]


def test_a_step_of_a_curve_behind_a_flat_part_is_found() -> None:
    cliff = {0: 2.0, 39: 2.0, 40: 1.0}
    # The second session gains nothing from up to 39 MiB; 40 MiB reduce its slowdown by 1.0.
    shares = divide(64 * MIB, [member(LINE), member(cliff)])
    assert in_mib(shares) == [24, 40]


def test_memory_that_no_session_can_use_stays_free() -> None:
    flat = {8: 1.0, 64: 1.0}
    shares = divide(256 * MIB, [member(LINE), member(flat)])
    assert in_mib(shares) == [64, 8]


def test_minimum_and_maximum_are_kept() -> None:
    assert in_mib(divide(64 * MIB, [member(LINE), member(HALF, least=20)])) == [44, 20]
    assert in_mib(divide(64 * MIB, [member(LINE, most=10), member(HALF)])) == [10, 54]


def test_a_session_without_a_curve_gets_an_equal_share() -> None:
    assert in_mib(divide(60 * MIB, [member(LINE), member(HALF), member(None)]))[2] == 20
    assert in_mib(divide(60 * MIB, [member(None), member(None, weight=2)])) == [20, 40]


def test_equal_shares_are_in_proportion_to_the_weights_within_the_limits() -> None:
    assert in_mib(equal_shares(60 * MIB, [member(None), member(None, weight=2)])) == [20, 40]
    limited = [member(None, most=5), member(None, least=35), member(None), member(None)]
    assert in_mib(equal_shares(60 * MIB, limited)) == [5, 35, 10, 10]
    assert in_mib(equal_shares(600 * MIB, [member(LINE), member(None, most=10)])) == [64, 10]
    assert equal_shares(60 * MIB, []) == []


def test_without_a_possible_division_the_shares_are_equal() -> None:
    # Neither session has a plan for less than 48 MiB.
    late = {48: 1.5, 64: 1.0}
    assert in_mib(divide(64 * MIB, [member(late), member(late)])) == [32, 32]


def test_a_curve_is_interpolated_and_never_rises() -> None:
    curve = Curve((10, 20, 30, 40), (math.inf, 1.5, 1.6, 1.0))
    assert curve.at([5, 15, 20, 25, 30, 35, 40, 99]).tolist() == [
        math.inf, math.inf, 1.5, 1.5, 1.5, 1.25, 1.0, 1.0
    ]  # fmt: skip
    assert Curve((10,), (math.inf,)).at([10]).tolist() == [math.inf]


@pytest.mark.parametrize(
    ("terms", "code"),
    [
        (Terms(weight=0), "usage"),
        (Terms(weight=-1), "usage"),
        (Terms(weight=math.nan), "usage"),
        (Terms(weight=math.inf), "usage"),
        (Terms(least_bytes=2 * MIB, most_bytes=MIB), "usage"),
        (Terms(most_bytes=0), "usage"),
        (Terms(least_bytes=65 * MIB), "budget-too-large"),
    ],
)
def test_invalid_terms_are_refused(terms: Terms, code: str) -> None:
    with pytest.raises(SentinelError) as refused:
        terms.require(64 * MIB)
    assert refused.value.code == code
    assert refused.value.hint


@st.composite
def members(draw: st.DrawFn) -> Member:
    weight = draw(st.sampled_from([0.5, 1.0, 1.0, 3.0]))
    least = draw(st.sampled_from([0, 0, 3 * PAGE, 1000]))
    most = draw(st.none() | st.integers(least + 1, 400 * PAGE))
    if draw(st.integers(0, 4)) == 0:
        return Member(Terms(weight, least, most))
    budgets = sorted(draw(st.sets(st.integers(0, 300 * PAGE), min_size=1, max_size=6)))
    slowdowns = sorted(
        draw(
            st.lists(
                st.floats(1, 10) | st.just(math.inf),
                min_size=len(budgets),
                max_size=len(budgets),
            )
        ),
        reverse=True,
    )
    return Member(Terms(weight, least, most), Curve(tuple(budgets), tuple(slowdowns)))


@given(st.lists(members(), max_size=6), st.integers(20 * PAGE, 600 * PAGE))
def test_every_division_keeps_its_limits(sharing: list[Member], size_bytes: int) -> None:
    equal, shares = equal_shares(size_bytes, sharing), divide(size_bytes, sharing)
    assert sum(shares) <= size_bytes
    assert sum(equal) <= size_bytes
    assert total(sharing, shares) <= total(sharing, equal)
    for one, share, equal_bytes in zip(sharing, shares, equal, strict=True):
        assert share >= one.terms.least_bytes
        if one.terms.most_bytes is not None:
            assert share <= one.terms.most_bytes
        if one.curve is None:
            assert share == equal_bytes
        else:
            slow, before = one.curve.at([share, equal_bytes])
            assert slow <= SLOWDOWN_MAX * before * (1 + 1e-12)


@given(st.lists(members(), min_size=2, max_size=3), st.integers(20, 40))
def test_no_division_into_pages_is_better(sharing: list[Member], pages: int) -> None:
    """The division is compared with all permitted divisions in which each session with a curve gets
    its minimum and a whole number of further pages."""
    size_bytes = pages * PAGE
    equal, shares = equal_shares(size_bytes, sharing), divide(size_bytes, sharing)
    options = []
    for one, equal_bytes in zip(sharing, equal, strict=True):
        if one.curve is None:
            options.append([(equal_bytes, 0.0)])
            continue
        possible = one.terms.least_bytes + np.arange(pages + 1) * PAGE
        if one.terms.most_bytes is not None:
            possible = possible[possible <= one.terms.most_bytes]
        slowdowns = one.curve.at(possible)
        allowed = slowdowns <= SLOWDOWN_MAX * one.curve.at([equal_bytes])[0]
        options.append(
            [
                (int(share), one.terms.weight * float(slow))
                for share, slow in zip(possible[allowed], slowdowns[allowed], strict=True)
            ]
        )
    least = min(
        (
            sum(cost for _, cost in choice)
            for choice in product(*options)
            if sum(share for share, _ in choice) <= size_bytes
        ),
        default=math.inf,
    )
    # divide() hands out memory in units of one or more pages. It may leave units free if each of
    # them would reduce the weighted sum of the slowdowns by less than UNIT_VALUE_MIN.
    assert total(sharing, shares) <= least + 1e-3


def test_fifty_sessions_share_one_budget() -> None:
    sharing = [
        member({2: 3.0 + at, 10: 1.0 + at / 100, 20: 1.0}, weight=1 + at % 3) for at in range(50)
    ]
    shares = divide(400 * MIB, sharing)
    assert sum(shares) <= 400 * MIB
    assert total(sharing, shares) < total(sharing, equal_shares(400 * MIB, sharing))


def test_many_sessions_get_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    sharing = [member(LINE), member(HALF), member(None)]
    equal = equal_shares(90 * MIB, sharing)
    assert divide(90 * MIB, sharing) != equal
    monkeypatch.setattr(division, "CURVES_DIVIDED_MAX", 1)
    assert divide(90 * MIB, sharing) == equal


def test_without_a_plan_for_a_session_only_equal_shares_are_permitted() -> None:
    sharing = [member({48: 1.5, 64: 1.0}), member({48: 1.5, 64: 1.0})]
    equal = equal_shares(64 * MIB, sharing)
    assert permitted(64 * MIB, sharing, equal)
    assert not permitted(64 * MIB, sharing, [16 * MIB, 40 * MIB])


def sized(size: int, weight: float = 1.0, most: int | None = None) -> Member:
    """A session without a curve; its processes have this size. Sizes are in MiB."""
    limit = None if most is None else most * MIB
    return Member(Terms(weight, most_bytes=limit), size_bytes=size * MIB)


def test_memory_that_no_curve_values_goes_to_sessions_with_a_size() -> None:
    planned = member(LINE)
    # 40 MiB are left. By weight, the sessions with a size get 3/4 and 1/4 of them.
    parts = spare_parts(64 * MIB, [planned, sized(60, 3), sized(60)], [8 * MIB, 8 * MIB, 8 * MIB])
    assert in_mib(parts) == [0, 30, 10]
    # Sizes and maximums limit the parts.
    parts = spare_parts(64 * MIB, [sized(10), sized(60), sized(60, most=9)], [8 * MIB] * 3)
    assert in_mib(parts) == [2, 37, 1]
    assert spare_parts(64 * MIB, [planned], [8 * MIB]) == [0]
    assert spare_parts(64 * MIB, [sized(60), planned], [32 * MIB, 32 * MIB]) == [0, 0]


def test_without_a_curve_the_size_limits_the_share() -> None:
    assert in_mib(equal_shares(64 * MIB, [sized(10), sized(60)])) == [10, 54]


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5), st.integers(0, 20)), max_size=5),
    st.integers(0, 50),
)
def test_spare_memory_is_within_all_limits(rows: list[tuple[int, int, int]], rest: int) -> None:
    members = [sized(size, weight) for size, weight, _ in rows]
    shares = [share * MIB for _, _, share in rows]
    parts = spare_parts(sum(shares) + rest * MIB, members, shares)
    assert sum(parts) <= rest * MIB
    wanted = 0
    for (size, _, _), share, part in zip(rows, shares, parts, strict=True):
        assert 0 <= part <= max(size * MIB - share, 0)
        wanted += max(size * MIB - share, 0)
    # Each part is a whole number of pages, so a few pages can be left over.
    assert sum(parts) >= min(wanted, rest * MIB) - 2 * PAGE * max(len(rows), 1)
