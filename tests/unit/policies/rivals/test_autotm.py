# SPDX-License-Identifier: Apache-2.0
"""AutoTM's choice, checked by hand: whole tensors, chosen by the cost of their slow uses.

stretch    0   1   2   3   4   5
first     (x)                 (x)     64 pages; (x) is a use
second    (x)         (x)             64 pages
third             (x)(x)              64 pages
guest             [x   x]             64 pages, born in 2, dead after 3; x is a use

A use in slow memory costs SLOW_S.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.check import verify
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import policy
from sentineld.policies.rivals import autotm
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.guests import with_guest
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

SLOW_S = 64 * PAGE / 1e9
NOTHING = 1e-3
"""A migration bandwidth, in pages a second, that is too low for any move."""


def planned(profile: Profile, pages: int, pages_per_s: float) -> Plan:
    plan = policy("autotm").plan(profile, moving(pages_per_s), pages * PAGE)
    verify(plan, profile, pages * PAGE)
    return plan


def moved(plan: Plan) -> list[tuple[int, int, int, int]]:
    names = ("tensor", "boundary", "tier", "bytes")
    return [tuple(int(move[name]) for name in names) for move in plan.moves]  # type: ignore[misc]


def lost_s(plan: Plan, stretches: int) -> float:
    return plan.predicted.step_ns / 1e9 - stretches


def test_if_no_solution_fits_every_tensor_stays_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy reduces the room after each solution that does not fit, but here the solver gets
    room for 10**6 pages every time."""
    solve = autotm.solve
    monkeypatch.setattr(autotm, "solve", lambda problem, _, *rest: solve(problem, 10**6, *rest))
    plan = planned(with_guest(), 64, 64)
    assert not len(plan.moves)
    assert plan.predicted.fast_share == 0
    assert plan.notes[0].startswith(f"none of {autotm.TRIES} solutions fits")


def test_with_room_for_three_the_tensor_with_the_gap_goes_out() -> None:
    plan = planned(with_guest(), 3 * 64, 64)
    assert moved(plan)[:1] == [(0, 1, 1, 64 * PAGE)]
    assert [entry[0] for entry in moved(plan)] == [0, 0]
    assert 3 <= moved(plan)[1][1] <= 4
    assert lost_s(plan, 6) == pytest.approx(0.0, abs=1e-8)
    assert simulate(
        with_guest(), policy("autotm"), moving(64), 3 * 64 * PAGE
    ).step_seconds == pytest.approx(6.0)


def test_a_birth_waits_only_if_the_tensors_that_live_together_need_the_room() -> None:
    # The first tensor leaves between its uses, and two short-lived tensors live one after the other
    # in stretch 4. The first tensor and one of the two fit into the room at the same time, so the
    # births in stretch 4 need not wait until the first tensor has left.
    profile = lap(8, Life(64, (0, 1, 7)), Life(64, (4,), (4, 4)), Life(64, (4,), (4, 4)))
    tensors = profile.tensors.copy()
    tensors["death_event"][1], tensors["birth_event"][2] = 1, 2
    plan = planned(replace(profile, tensors=tensors), 2 * 64, 64)
    assert [entry[::2] for entry in moved(plan)] == [(0, 1), (0, 0)]
    assert plan.predicted.fast_share == 1
    assert plan.layout.waits.tolist() == [-1] * 8


def test_without_bandwidth_it_is_the_best_placement() -> None:
    # All four tensors have two uses. Only three tensors fit in stretches 2 and 3, so one is slow.
    plan = planned(with_guest(), 3 * 64, NOTHING)
    assert not len(plan.moves)
    assert lost_s(plan, 6) == pytest.approx(2 * SLOW_S, abs=1e-8)


def test_a_tensor_is_fast_as_a_whole_or_not_at_all() -> None:
    # There is room for one and a half tensors; the room for half a tensor is not used.
    plan = planned(with_guest(), 96, NOTHING)
    assert lost_s(plan, 6) == pytest.approx((8 - 2) * SLOW_S, abs=1e-8)
    assert int(plan.initial["bytes"][plan.initial["tier"] == 0].sum()) in (0, 64 * PAGE)


def test_a_birth_is_fast_and_the_rest_of_a_life_slow() -> None:
    # The transient tensor is born and read in stretch 0 and read again in stretch 5. The persistent
    # tensor is used in stretches 2, 3 and 4 and takes the room from stretch 2 on.
    profile = lap(6, Life(64, (0, 5), (0, 5)), Life(64, (2, 3, 4)))
    plan = planned(profile, 64, 64)
    fast = {region.name for region in plan.layout.regions}
    assert fast in ({"fast-born"}, {"slow-born"})
    # Of the 5 uses, only two are slow if the transient tensor stays slow and the persistent tensor
    # fast. The chosen plan costs no more than that.
    assert lost_s(plan, 6) <= 2 * SLOW_S + 1e-8


def test_a_tensor_that_is_never_used_again_makes_room() -> None:
    # The first tensor is used only in stretch 0 and lives until stretch 4; the other tensor is used
    # in stretch 3. There is room for one tensor. So the first tensor is demoted at boundary 1, and
    # the other tensor is promoted at boundary 2 and demoted at boundary 4.
    profile = lap(5, Life(64, (0,), (0, 4)), Life(64, (3,)))
    plan = planned(profile, 64, 64)
    assert lost_s(plan, 5) == pytest.approx(0.0, abs=1e-8)
    assert [entry[:3] for entry in moved(plan)] == [(0, 1, 1), (1, 2, 0), (1, 4, 1)]


def test_without_a_solution_in_time_everything_stays_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotm, "RELAXATION_S", 0.0)
    plan = planned(with_guest(), 2 * 64, 64)
    assert lost_s(plan, 6) == pytest.approx(8 * SLOW_S, abs=1e-8)
    assert "everything stays slow" in plan.notes[0]


def test_infeasible_limits_are_refused() -> None:
    with pytest.raises(SentinelError, match="infeasible"):
        policy("autotm").plan(with_guest(), moving(64), PAGE - 1)
    with pytest.raises(SentinelError, match="infeasible"):
        policy("autotm").plan(with_guest(), moving(0), 64 * PAGE)


def test_without_scipy_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SentinelError, match="needs scipy") as error:
        policy("autotm").plan(with_guest(), moving(64), 64 * PAGE)
    assert error.value.hint == "apt install python3-scipy"


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.integers(16, 96),
            st.sets(st.integers(0, 7), min_size=1, max_size=4),
            st.booleans(),
            st.integers(0, 8),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 300),
    st.sampled_from([0.5, 20.0, 64.0, 500.0]),
)
def test_any_answer_is_a_valid_plan(
    tensors: list[tuple[int, set[int], bool, int]], room: int, pages_per_s: float
) -> None:
    lives = []
    for pages, used, lasts, more in tensors:
        uses = tuple(sorted(used))
        ends = min(uses[-1] + more, 7)
        lives.append(Life(pages, uses, None if lasts else (uses[0], ends)))
    profile, tiers = lap(8, *lives), moving(pages_per_s)
    budget = max(room, 1) * PAGE
    plan = planned(profile, max(room, 1), pages_per_s)
    least = bound_seconds(profile, tiers, budget)
    ceiling = float(plan.notes[0].split()[-2])
    assert least <= ceiling + 1e-3
    assert ceiling <= plan.predicted.step_ns / 1e9 + 1e-3
    found = simulate(profile, policy("autotm"), tiers, budget, steps_max=40)
    assert found.step_seconds >= least * (1 - 1e-6)
    # No move is empty.
    assert np.all(plan.moves["bytes"] > 0)
