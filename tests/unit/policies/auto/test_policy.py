# SPDX-License-Identifier: Apache-2.0
"""Policy `auto`: plans checked by hand for the toy, and properties of plans for any step."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.model.plan import SLOT_PLANNED, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tier, Tiers
from sentineld.plan.check import verify
from sentineld.plan.items import tensor_pages
from sentineld.plan.residency import residency
from sentineld.policies.auto import policy as auto
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.problem import Changes, Limits, Solution
from sentineld.policies.lp.program import solve
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.conftest import examples
from tests.unit.plan.toys import LARGE, PAGE, large_profile
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=4, weight_bytes=MIB // 4, activation_bytes=MIB // 2, bytes_per_s=4e9)
CUTS = tuple(range(4, 60, 4))


def tiers(pages_per_s: float) -> Tiers:
    fast, slow = Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)
    return Tiers((fast, slow), pages_per_s * PAGE, "toy")


def planned(pages: int, pages_per_s: float) -> Plan:
    """A plan for large_profile(). pages: the budget without the policy's margin, in units of 64
    pages. pages_per_s: migration bandwidth."""
    profile, budget = large_profile(), pages * LARGE * PAGE * 201 // 200 + PAGE
    plan = policy("auto").plan(profile, tiers(pages_per_s), budget)
    verify(plan, profile, budget)
    return plan


@pytest.fixture(scope="module")
def training() -> Profile:
    return profiled(NETWORK, CUTS)[0]


def test_with_room_for_everything_nothing_moves() -> None:
    plan = planned(11, 8.0 * LARGE)
    assert plan.predicted.step_ns == 4e9
    assert not len(plan.moves)


def test_without_time_to_move_the_plan_is_the_best_placement() -> None:
    # Each page of toy_profile() is a unit of 64 pages here. The step has 19 uses of units:
    # activation 2 x 2, scratch 1, gradient 2 x 2, state 4, parameter 2 x 3. With two fast units, 6
    # of these uses can be fast. Each of the parameter's two units serves 3 uses. A unit that serves
    # the scratch (1 use) and then the gradient (2 uses) serves 3 uses, too.
    page_s = 0.75 * PAGE * LARGE / 1e9
    plan = planned(2, 1e-3)
    assert not len(plan.moves)
    slow_s = (plan.predicted.step_ns - 4e9) / 1e9
    # The policy rounds the fast part of a group down to whole grains of 16 pages, a quarter of a
    # unit. So up to a quarter of a unit can be slow in addition. If this quarter has 3 uses, up to
    # 3 / 4 = 0.75 more uses of units are slow.
    assert (19 - 6) * page_s * 0.99 <= slow_s <= (19 - 6 + 0.75) * page_s


def test_moves_are_made_where_they_pay(training: Profile) -> None:
    both, budget = preset_tiers("cxl", 12), training.peak_bytes // 5
    moving = policy("auto").plan(training, both, budget)
    fixed = policy("auto").plan(training, replace(both, migration_bytes_per_s=1.0), budget)
    assert len(moving.moves)
    assert moving.predicted.step_ns < 0.99 * fixed.predicted.step_ns
    assert not len(fixed.moves)


def test_a_tensor_can_be_born_on_both_tiers() -> None:
    # The budget of 64 pages holds only a part of each tensor, except for the scratch.
    profile, budget = large_profile(), LARGE * PAGE
    plan = policy("auto").plan(profile, tiers(1e-3), budget)
    verify(plan, profile, budget)
    found, pages = residency(plan, profile), tensor_pages(profile)
    born = found.tier[profile.tensors["birth_stretch"][found.tensor], np.arange(len(found.tensor))]
    fast = np.bincount(found.tensor, found.pages * (born == 0), minlength=len(pages))
    arena = profile.tensors["slot"] >= 0
    lasting = ~arena & (fast > 0) & (fast < pages)
    across = arena & (fast > 0) & (fast < pages)
    assert across.any() or lasting.any()
    for row in np.flatnonzero(across):
        offset = int(plan.layout.slots["offset"][profile.tensors["slot"][row]])
        edge = offset + int(fast[row]) * PAGE
        assert any(region.offset == edge and region.tier == 1 for region in plan.layout.regions)


@pytest.mark.parametrize("preset", ["cxl", "optane"])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.5])
def test_no_other_policy_is_faster(training: Profile, preset: str, share: float) -> None:
    both, budget = preset_tiers(preset, 12), int(training.peak_bytes * share)
    mine = simulate(training, policy("auto"), both, budget)
    assert mine.repeats
    assert mine.peak_fast_bytes <= budget
    assert mine.step_seconds == pytest.approx(mine.predicted_seconds, rel=0.02)
    swapping = (
        "g10+slow",
        "capuchin+slow",
        "flashneuron+slow",
        "swapadvisor+slow",
        "vdnn+slow",
        "lms+slow",
        "zero-offload+slow",
        "zero-infinity+slow",
        "superneurons+slow",
        "tensile+slow",
        "tiertrain",
    )
    fixed = ("static", "interleave", "weighted-interleave", "first-touch")
    for name in ("sentinel", *swapping, *fixed):
        # Each of these policies can make a plan here, so an error fails the test.
        other = simulate(training, policy(name), both, budget)
        assert mine.step_seconds <= 1.001 * other.step_seconds, name


@given(
    blocks=st.integers(1, 4),
    weight_pages=st.integers(1, 80),
    activation_pages=st.integers(1, 200),
    share=st.floats(0.02, 1.2),
    bytes_per_s=st.floats(1e6, 1e11),
    cuts=st.sets(st.integers(1, 40), max_size=12),
    preset=st.sampled_from(["cxl", "optane"]),
)
@settings(max_examples=examples(ci=20, long=400))
def test_plans_keep_the_budget_and_no_step_beats_the_bound(
    blocks: int,
    weight_pages: int,
    activation_pages: int,
    share: float,
    bytes_per_s: float,
    cuts: set[int],
    preset: str,
) -> None:
    network = Network.of_pages(blocks, weight_pages, activation_pages, 4e9)
    profile, _ = profiled(network, tuple(sorted(cuts)))
    budget = max(int(profile.peak_bytes * share), 2 * PAGE)
    both = replace(preset_tiers(preset, 12), migration_bytes_per_s=bytes_per_s)
    # simulate() verifies the plan.
    found = simulate(profile, policy("auto"), both, budget, steps_max=20)
    assert found.peak_fast_bytes <= budget
    assert found.step_seconds >= bound_seconds(profile, both, budget) * (1 - 1e-6)


def equal(one: Plan, other: Plan) -> bool:
    return (
        np.array_equal(one.moves, other.moves)
        and np.array_equal(one.initial, other.initial)
        and np.array_equal(one.layout.slots, other.layout.slots)
        and np.array_equal(one.layout.waits, other.layout.waits)
        and one.layout.regions == other.layout.regions
        and one.predicted == other.predicted
        and one.notes == other.notes
    )


def test_same_profile_same_plan(training: Profile) -> None:
    both, budget = preset_tiers("cxl", 12), training.peak_bytes // 5
    assert equal(*(policy("auto").plan(training, both, budget) for _ in range(2)))


def test_the_smallest_and_the_largest_budgets(training: Profile) -> None:
    both = preset_tiers("cxl", 12)
    with pytest.raises(SentinelError, match="infeasible"):
        policy("auto").plan(training, both, 0)
    page = policy("auto").plan(training, both, PAGE)
    verify(page, training, PAGE)
    assert page.predicted.peak_fast_bytes <= PAGE
    all_fast = policy("auto").plan(training, both, 2 * training.peak_bytes)
    verify(all_fast, training, 2 * training.peak_bytes)
    assert all_fast.predicted.step_ns == training.stretches["time_ns"].sum()


def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which each later call of solve() appends the number of groups of its program."""
    found: list[int] = []

    def noting(groups: Groups, limits: Limits, changes: Changes, needed_by: str) -> Solution | None:
        found.append(len(groups.pages))
        return solve(groups, limits, changes, needed_by)

    monkeypatch.setattr(auto, "solve", noting)
    return found


@pytest.mark.parametrize("iterations", [0, 1])
def test_a_solver_at_its_limits_leaves_a_safe_plan(
    training: Profile, iterations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "ATTEMPTS", ((1000, iterations), (10, iterations)))
    sizes = solved(monkeypatch)
    both, budget = preset_tiers("cxl", 12), training.peak_bytes // 5
    plan = policy("auto").plan(training, both, budget)
    verify(plan, training, budget)
    assert not len(plan.moves)
    assert "no answer within limits" in plan.notes[0]
    assert np.any(plan.initial["tier"] == 0)
    assert np.all(plan.layout.slots["flags"] & SLOT_PLANNED)
    assert sizes[0] > sizes[1] == 10
    assert equal(plan, policy("auto").plan(training, both, budget))


def test_the_solver_is_limited_by_iterations(
    training: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The solver always needs the same number of iterations, whatever the machine's speed. With one
    # iteration fewer it gives no answer.
    both, budget = preset_tiers("cxl", 12), training.peak_bytes // 5

    def answered(iterations: int) -> bool:
        monkeypatch.setattr(auto, "ATTEMPTS", ((1000, iterations),))
        return bool(len(policy("auto").plan(training, both, budget).moves))

    low, high = 0, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if answered(middle) else (middle, high)
    assert 10 < high < 1 << 14
    assert [answered(high), answered(high - 1), answered(high)] == [True, False, True]


def test_the_same_groups_are_not_tried_again(
    training: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "ATTEMPTS", ((3000, 1), (600, 100_000)))
    sizes = solved(monkeypatch)
    plan = policy("auto").plan(training, preset_tiers("cxl", 12), training.peak_bytes // 5)
    assert "no answer within limits" in plan.notes[0]
    assert len(sizes) == 1
    assert sizes[0] <= 600


def test_the_last_attempt_plans_the_costliest_groups(
    training: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "ATTEMPTS", ((1000, 0), (10, 100_000)))
    both, budget = preset_tiers("cxl", 12), training.peak_bytes // 5
    plan = policy("auto").plan(training, both, budget)
    verify(plan, training, budget)
    assert plan.notes[0].startswith("10 groups of tensors")
    assert "stay slow" in plan.notes[1]
    assert len(plan.moves)
    monkeypatch.undo()
    assert policy("auto").plan(training, both, budget).predicted.step_ns < plan.predicted.step_ns


def test_without_scipy_the_error_names_the_package(
    training: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(SentinelError, match="auto needs scipy") as error:
        policy("auto").plan(training, preset_tiers("cxl", 12), training.peak_bytes // 5)
    assert "apt install python3-scipy" in error.value.hint
