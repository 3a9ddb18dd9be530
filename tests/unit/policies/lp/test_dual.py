# SPDX-License-Identifier: Apache-2.0
"""The dual of the linear program is a lower bound at any prices.

At the program's own prices, the dual equals the program's optimum.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sentineld.model.arrays import Floats
from sentineld.model.timing import timing_of
from sentineld.policies.lp.dual import lower_bound
from sentineld.policies.lp.groups import Groups, groups_of
from sentineld.policies.lp.problem import Limits, Prices, changes_of
from sentineld.policies.lp.program import solve
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.tiering import VARIANTS, paged_tiers, tiers
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=2, weight_bytes=40 * PAGE, activation_bytes=90 * PAGE, bytes_per_s=2e9)


def everywhere(groups: Groups) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """All positions after which a group can change its tier, for each group: every position of its
    life, except for the last one of a transient group."""
    return [
        np.arange(int(length) - (not lasts))
        for length, lasts in zip(groups.length, groups.persistent, strict=True)
    ]


def problem(
    pages: int, pages_per_s: float, toy: bool, kind: str | float = "plain"
) -> tuple[Groups, Limits]:
    """The groups and limits of a program for the large toy or for a small training.

    kind: the name of a variant of the timing model or, for paged tiers, the time of a write
        divided by the time of a read.
    """
    profile = large_profile() if toy else profiled(NETWORK, (3, 7, 12, 20))[0]
    # On paged tiers, every second access only reads, so that there are clean pages. Every third
    # access touches a half of its tensor.
    rows = profile.accesses.copy()
    if isinstance(kind, float):
        rows["bytes_written"][::2] = 0
        rows["bytes_read"][::3] //= 2
    profile = replace(profile, accesses=rows)
    if isinstance(kind, float):
        found = paged_tiers(pages_per_s, pages_per_s / kind, 1e4)
    else:
        found = replace(tiers(pages_per_s), **VARIANTS[kind])
    timing = timing_of(found)
    return groups_of(profile, timing, generous=True), Limits(
        times_ns=profile.stretches["time_ns"].astype(np.float64),
        promote_ns=timing.promote_ns_per_byte * PAGE,
        demote_ns=timing.demote_ns_per_byte * PAGE,
        capacity_pages=pages,
        generous=True,
        hidden_ns=None if timing.overlap == "none" else timing.costs(profile).hidden_ns,
    )


@pytest.mark.parametrize("toy", [True, False])
@pytest.mark.parametrize("pages", [0, LARGE, 3 * LARGE, 100 * LARGE])
@pytest.mark.parametrize("pages_per_s", [LARGE / 2, 5.0 * LARGE, 3e5])
@pytest.mark.parametrize("kind", [*VARIANTS, 0.4, 1.0, 3.0])
def test_at_the_programs_prices_the_bound_is_the_programs_value(
    toy: bool, pages: int, pages_per_s: float, kind: str | float
) -> None:
    groups, limits = problem(pages, pages_per_s, toy, kind)
    clean = np.ones(len(groups.pages), np.bool_)
    solution = solve(groups, limits, everywhere(groups), "the test", clean)
    assert solution is not None
    found = lower_bound(groups, limits, solution.prices)
    assert found.ns == pytest.approx(solution.step_ns, rel=1e-6)


@pytest.mark.parametrize("pages", [LARGE, 3 * LARGE])
def test_fewer_positions_cost_more(pages: int) -> None:
    groups, limits = problem(pages, 1e5, toy=False)
    every = solve(groups, limits, everywhere(groups), "the test")
    some = solve(groups, limits, changes_of(groups, generous=True), "the test")
    none = solve(groups, limits, [np.zeros(0, np.int64) for _ in groups.pages], "the test")
    assert every is not None
    assert some is not None
    assert none is not None
    assert every.step_ns <= some.step_ns * (1 + 1e-9) <= none.step_ns * (1 + 1e-8)
    assert every.step_ns < 0.99 * none.step_ns
    # Of the three programs, the one with changes at every position has the prices that give the
    # best bound.
    values = [lower_bound(groups, limits, one.prices).ns for one in (every, some, none)]
    assert max(values) == pytest.approx(values[0], rel=1e-6)


@given(
    pages=st.integers(0, 12 * LARGE),
    pages_per_s=st.floats(1.0, 1e5),
    toy=st.booleans(),
    kind=st.sampled_from(list(VARIANTS)) | st.floats(0.1, 5.0),
    scale=st.floats(0.0, 3.0),
    seed=st.integers(0, 1 << 30),
)
# This example fails if the program can demote pages that are slow already: the program's optimum
# is then below the dual at these prices.
@example(pages=0, pages_per_s=1.0, toy=True, kind=1.0, scale=1.0, seed=13995)
@settings(deadline=None)
def test_at_any_prices_the_dual_is_a_lower_bound(
    pages: int,
    pages_per_s: float,
    toy: bool,
    kind: str | float,
    scale: float,
    seed: int,
) -> None:
    groups, limits = problem(pages, pages_per_s, toy, kind)
    clean = np.ones(len(groups.pages), np.bool_)
    solution = solve(groups, limits, everywhere(groups), "the test", clean)
    assert solution is not None
    random = np.random.default_rng(seed)

    def near(prices: Floats) -> Floats:
        spread = float(prices.mean()) + 1.0
        return prices + scale * spread * random.normal(size=prices.shape)

    exact = solution.prices
    others = Prices(
        near(exact.moves),
        near(exact.boundaries),
        near(exact.points),
        exact.hidden + scale * random.normal(size=len(exact.hidden)),
        near(exact.timed_points),
        near(exact.kept),
    )
    assert lower_bound(groups, limits, others).ns <= solution.step_ns * (1 + 1e-6)
