# SPDX-License-Identifier: Apache-2.0
"""Plans that are corrected by measurements, and stalls that are chosen by trial."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Profile
from sentineld.plan.correct import WINDOW_STEPS
from sentineld.plan.stall_trial import (
    SETTLING_STEPS,
    STEPS_PER_BOUNDARY,
    StallTrial,
    stall_boundaries,
)
from sentineld.policies.registry import policy
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.loop import plan_again
from sentineld.simulate.simulate import Outcome, simulate
from sentineld.simulate.training import Training
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=6, weight_bytes=MIB // 4, activation_bytes=MIB, bytes_per_s=40e9)
CUTS = tuple(range(4, 80, 4))
TIERS = preset_tiers("cxl", 12)
HALF = Disturbance(interference=0.5)


@pytest.fixture(scope="module")
def training() -> Profile:
    return profiled(NETWORK, CUTS)[0]


def passed(
    profile: Profile,
    name: str,
    disturbance: Disturbance,
    planning_s: float | None = 0.0,
    steps: int = 60,
) -> Outcome:
    budget = profile.peak_bytes // 5
    return simulate(profile, policy(name), TIERS, budget, disturbance, steps, planning_s=planning_s)


@pytest.mark.parametrize("name", ["auto", "sentinel+spill"])
def test_half_the_bandwidth_stalls_no_more_than_one_step(training: Profile, name: str) -> None:
    left_alone = passed(training, name, HALF, planning_s=None)
    assert left_alone.corrections == 0
    assert left_alone.stalled_steps == left_alone.steps > 1
    assert left_alone.stall_seconds > 0.05 * left_alone.step_seconds
    found = passed(training, name, HALF)
    assert found.corrections == 1
    # The first step under any plan, including the corrected plan, can stall.
    entering = passed(training, name, Disturbance()).stalled_steps
    assert found.stalled_steps <= 1 + entering
    assert found.step_seconds < left_alone.step_seconds
    assert found.peak_fast_bytes <= found.budget_bytes
    assert any("switched to the spare plan after step 1" in note for note in found.notes)
    # The steps are as fast as if the bandwidth had been known from the start.
    measured = replace(TIERS, migration_bytes_per_s=TIERS.migration_bytes_per_s / 2)
    known = simulate(training, policy(name), measured, found.budget_bytes)
    assert found.step_seconds == pytest.approx(known.step_seconds, rel=0.01)


def test_at_half_the_bandwidth_the_spare_plan_saves_the_planning_time(training: Profile) -> None:
    at_once = passed(training, "auto", HALF)
    found = passed(training, "auto", HALF, planning_s=50 * at_once.step_seconds)
    assert found == at_once


def test_without_a_fitting_spare_plan_steps_stall_until_planning_ends(
    training: Profile,
) -> None:
    four_fifths = Disturbance(interference=0.2)
    at_once = passed(training, "auto", four_fifths)
    assert at_once.corrections == 1
    # A small deviation is corrected only after a full window of steps.
    assert at_once.stalled_steps >= WINDOW_STEPS
    later = passed(training, "auto", four_fifths, planning_s=5 * at_once.step_seconds)
    assert later.corrections == 1
    assert at_once.stalled_steps < later.stalled_steps <= at_once.stalled_steps + 6
    assert any("planned again after step" in note for note in later.notes)


def test_a_spare_plan_for_too_much_bandwidth_is_replaced_by_a_new_plan(
    training: Profile,
) -> None:
    found = passed(training, "auto", Disturbance(interference=0.8))
    assert found.corrections == 2
    assert "switched to the spare plan" in found.notes[-2]
    assert "planned again" in found.notes[-1]
    measured = replace(TIERS, migration_bytes_per_s=TIERS.migration_bytes_per_s / 5)
    known = simulate(training, policy("auto"), measured, found.budget_bytes)
    assert found.step_seconds == pytest.approx(known.step_seconds, rel=0.01)


def test_an_undisturbed_training_keeps_its_plan(training: Profile) -> None:
    for name in ("auto", "sentinel+spill", "static", "first-touch"):
        assert passed(training, name, Disturbance()).corrections == 0


def test_noise_alone_causes_no_replanning(training: Profile) -> None:
    for seed in (1, 2, 3):
        found = passed(training, "auto", Disturbance(noise=0.25, seed=seed))
        assert found.corrections == 0
        assert found.steps == 60


def test_a_wrong_profile_is_corrected_if_it_does_harm(training: Profile) -> None:
    skewed = Disturbance(skew=0.3, seed=4)
    left_alone = passed(training, "auto", skewed, planning_s=None)
    found = passed(training, "auto", skewed)
    assert found.fast_only_seconds == left_alone.fast_only_seconds
    assert found.step_seconds <= left_alone.step_seconds * (1 + 1e-9)
    assert found.corrections == 1
    assert any("differ from the profile" in note for note in found.notes)


def test_another_plan_must_be_faster(training: Profile) -> None:
    chosen, budget = policy("auto"), training.peak_bytes // 5
    live = chosen.plan(training, TIERS, budget)
    assert plan_again(chosen, training, TIERS, budget, live) is None
    slow = replace(TIERS, migration_bytes_per_s=TIERS.migration_bytes_per_s / 2)
    assert plan_again(chosen, training, slow, budget, live) is not None


def test_steps_stall_for_late_promotions_only_if_that_is_faster(training: Profile) -> None:
    chosen, budget = policy("sentinel"), training.peak_bytes // 2
    plan = chosen.plan(training, TIERS, budget)
    found = simulate(training, chosen, TIERS, budget, plan=plan)
    assert len(stall_boundaries(plan)) == 6
    assert (
        "stalls at 1 of the boundaries with late promotions and does not stall at 5"
        in found.notes[-1]
    )
    trial = {name: steps for name, steps, _ in found.phases}["trial"]
    # A trial begins and ends at a boundary within a step, not at the step's beginning. So the phase
    # "trial" has one step more than SETTLING_STEPS plus STEPS_PER_BOUNDARY for each boundary with
    # late promotions.
    assert trial == SETTLING_STEPS + STEPS_PER_BOUNDARY * len(stall_boundaries(plan)) + 1
    without = Training(training, chosen, plan, TIERS, budget, Disturbance(), 60).replay()
    without.trial = StallTrial([], training.stretch_count)
    without.begin()
    never = [without.step() for _ in range(10)][-1]
    assert found.step_seconds < 0.999 * never.ns / 1e9
