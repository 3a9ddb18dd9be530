# SPDX-License-Identifier: Apache-2.0
"""The linear program's optimum for steps that can be computed by hand."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Profile
from sentineld.model.timing import timing_of
from sentineld.policies.lp.groups import Groups, groups_of
from sentineld.policies.lp.problem import Limits, Solution, changes_of
from sentineld.policies.lp.program import solve
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.policies.rivals.laps import Life, lap, moving
from tests.unit.policies.tiering import paged_tiers, tiers

USE_NS = 0.75 * PAGE * LARGE
"""Extra time in ns of one use of 64 pages of the large toy if these pages are slow."""


def program(
    profile: Profile, pages: int, page_ns: float, iterations: int | None = None
) -> tuple[Groups, Limits]:
    timing = timing_of(tiers(1.0))
    times = profile.stretches["time_ns"].astype(np.float64)
    return groups_of(profile, timing), Limits(
        times, page_ns, page_ns, pages, iterations_max=iterations
    )


def solved(profile: Profile, pages: int, page_ns: float) -> tuple[Groups, Solution]:
    groups, limits = program(profile, pages, page_ns)
    found = solve(groups, limits, changes_of(groups), "the test")
    assert found is not None
    return groups, found


def test_with_room_for_everything_all_is_fast() -> None:
    groups, found = solved(large_profile(), 12 * LARGE, 1e6)
    assert found.step_ns == pytest.approx(4e9)
    for at, length in enumerate(groups.length.tolist()):
        assert found.fast_pages[:length, at] == pytest.approx(groups.pages[at])


def test_without_room_all_is_slow() -> None:
    _, found = solved(large_profile(), 0, 1e6)
    assert found.step_ns == pytest.approx(4e9 + 19 * USE_NS, abs=0.01 * USE_NS)
    assert not found.fast_pages.any()


def test_without_moves_the_parameter_is_fast() -> None:
    # There is room for two units of 64 pages. A page of the parameter serves 3 uses, and a page of
    # the gradient or of the activation serves 2 uses; see test_step_time.py.
    groups, found = solved(large_profile(), 2 * LARGE, 1e12)
    assert found.step_ns == pytest.approx(4e9 + (19 - 6) * USE_NS, abs=0.01 * USE_NS)
    assert groups.members[4].tolist() == [4]
    assert found.fast_pages[:, 4] == pytest.approx(groups.pages[4])


def test_what_is_used_in_turn_shares_the_room_by_moves() -> None:
    # Five stretches lie between the uses of the two tensors, and there is room for one tensor.
    profile = lap(12, Life(64, (0,)), Life(64, (6,)))
    timing = timing_of(moving(64))
    groups = groups_of(profile, timing)
    times = profile.stretches["time_ns"].astype(np.float64)
    cost_ns = 64 * PAGE

    def step_ns(page_ns: float) -> float:
        found = solve(groups, Limits(times, page_ns, page_ns, 64), changes_of(groups), "the test")
        assert found is not None
        assert (found.fast_pages.sum(axis=1) <= 64 + 1e-6).all()
        return found.step_ns

    # In the first call below, each of the four transfers of a step takes the time of two stretches.
    # In the second call, each transfer takes more time than the step.
    assert step_ns(2e9 / 64) == pytest.approx(12e9)
    assert step_ns(1e12) == pytest.approx(12e9 + cost_ns, rel=1e-6)


def test_a_limit_on_iterations_gives_no_solution() -> None:
    groups, limits = program(large_profile(), 4 * LARGE, 1e6, iterations=0)
    assert solve(groups, limits, changes_of(groups), "the test") is None


@pytest.mark.parametrize(
    ("generous", "hint"),
    [
        (False, "apt install python3-scipy, or use the policy sentinel+spill"),
        (True, "apt install python3-scipy"),
    ],
)
def test_without_scipy_the_error_says_what_needs_it(
    generous: bool, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    groups, limits = program(large_profile(), 4 * LARGE, 1e6)
    limits = replace(limits, generous=generous)
    with pytest.raises(SentinelError, match="the test needs scipy") as error:
        solve(groups, limits, changes_of(groups), "the test")
    assert error.value.hint == hint


@settings(max_examples=25)
@given(st.integers(0, 10 * LARGE), st.integers(0, 3 * LARGE), st.floats(1e4, 1e8))
def test_more_room_makes_no_step_longer_and_a_bound_is_below_every_plan(
    pages: int, more: int, page_ns: float
) -> None:
    profile = large_profile()
    groups, limits = program(profile, pages, page_ns)
    one = solve(groups, limits, changes_of(groups), "the test")
    other = solved(profile, pages + more, page_ns)[1]
    assert one is not None
    # The program adds a small cost for each move, so the two optima are compared with a tolerance.
    assert other.step_ns <= one.step_ns * (1 + 1e-4) + 0.05 * 19 * USE_NS
    assert 4e9 * (1 - 1e-9) <= one.step_ns <= 4e9 + 19.01 * USE_NS
    loose = groups_of(profile, timing_of(tiers(1.0)), generous=True)
    wide = Limits(limits.times_ns, page_ns, page_ns, pages, generous=True)
    least = solve(loose, wide, changes_of(loose, generous=True), "the test")
    assert least is not None
    assert least.step_ns <= one.step_ns * (1 + 1e-9)


ROUNDING = 5e-4
"""Relative error of the costs of a page, which are rounded to four digits."""


def all_slow_ns(life: Life, share: float = 1.0) -> float:
    """The program's step time for a step of two stretches on paged tiers without memory. The file
    is read at 64 pages/s and written at 16 pages/s.

    share: the share of this bandwidth that the plan assumes for moves.
    """
    profile, disk = lap(2, life), paged_tiers(64.0, 16.0)
    timing = timing_of(replace(disk, migration_bytes_per_s=disk.migration_bytes_per_s * share))
    groups = groups_of(profile, timing)
    times = profile.stretches["time_ns"].astype(np.float64)
    moves_ns = timing.promote_ns_per_byte * PAGE, timing.demote_ns_per_byte * PAGE
    found = solve(groups, Limits(times, *moves_ns, 0), changes_of(groups), "the test")
    assert found is not None
    return found.step_ns


def test_writing_slow_pages_back_takes_time_at_the_bandwidth_of_moves() -> None:
    # Stretch 0 reads 64 pages in 1 s and changes them. To write them takes 4 s, or 200 s at 2 % of
    # the bandwidth. In the program, they are written in stretch 0. Stretch 1 takes 1 s.
    life = Life(64, (0,), written_in=(0,))
    assert all_slow_ns(life) == pytest.approx(6e9, rel=ROUNDING)
    assert all_slow_ns(life, 0.02) == pytest.approx(202e9, rel=ROUNDING)


@pytest.mark.parametrize(
    ("life", "step_s"),
    [
        # 5 s for stretch 0, of which the writes take 4 s; 2 s for stretch 1, of which the reads of
        # the slow pages take 1 s
        (Life(64, (0, 1), (0, 1), (0,)), 7.0),
        (Life(64, (0,), (0, 0), (0,)), 3.0),  # dead pages are not written
        (Life(64, (1,), (0, 1)), 3.0),  # not accessed in stretch 0: no content to write
    ],
)
def test_slow_births_are_written_if_they_outlive_their_stretch(life: Life, step_s: float) -> None:
    assert all_slow_ns(life) == pytest.approx(step_s * 1e9, rel=ROUNDING)
