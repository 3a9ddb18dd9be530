# SPDX-License-Identifier: Apache-2.0
"""When measurements under a plan lead to a correction, and when they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.plan import Plan
from sentineld.model.profile import STRETCH_DTYPE
from sentineld.model.timing import FAULT_BYTES
from sentineld.plan.correct import (
    EARNED_STEPS,
    PATIENCE_STEPS,
    RECHECK_STEPS,
    WINDOW_STEPS,
    Correction,
    Corrector,
    Progress,
)
from tests.unit.plan.toys import large_plan, large_profile, two_tiers

PLAN, PROFILE = large_plan(), large_profile()
MOVED = float(PLAN.moves["bytes"].sum())
TIMES = PROFILE.stretches["time_ns"].astype(np.float64)
STEP_NS = float(TIMES.sum())
NOMINAL = MOVED / 3
"""The bandwidth at which the mover is busy for three of a step's four seconds."""


class Steps:
    """A training that advances by quarters of a step.

    every: number of quarters from one call of look() to the next.
    """

    def __init__(self, assumed: float = NOMINAL, every: int = 1) -> None:
        self.every = every
        self.corrector = Corrector(two_tiers(NOMINAL))
        self.progress = Progress(steps=100)
        self.enter(assumed)

    def enter(self, assumed: float) -> None:
        self.corrector.entered(PLAN, PROFILE, two_tiers(assumed), self.progress)

    def run(
        self, steps: int, rate: float = NOMINAL, stall: float = 0.0, late: int = 0
    ) -> tuple[int, Correction | None]:
        """Run until there is a correction, but at most `steps` steps.

        Returns the number of whole steps that passed, and the correction or None. rate: bytes that
        are moved per second of the mover's busy time. stall: stall time divided by step time. late:
        number of late moves in each step.
        """
        for quarter in range(4 * steps):
            before = self.progress
            self.progress = Progress(
                before.steps + (quarter % 4 == 3),
                before.time_ns + STEP_NS / 4,
                before.moved_bytes + MOVED / 4,
                before.busy_ns + MOVED / 4 / rate * 1e9,
                before.stall_ns + stall * STEP_NS / 4,
                before.late_moves + late * (quarter % 4 == 3),
            )
            if quarter % self.every:
                continue
            correction = self.corrector.look(self.progress)
            if correction is not None:
                return quarter // 4, correction
        return steps, None


def test_a_plan_that_performs_as_assumed_stays() -> None:
    assert Steps().run(50) == (50, None)


@pytest.mark.parametrize(("stall", "late"), [(0.1, 0), (0.0, len(PLAN.moves))])
def test_half_the_bandwidth_is_detected_within_the_first_harmful_step(
    stall: float, late: int
) -> None:
    steps, correction = Steps().run(10, NOMINAL / 2, stall, late)
    assert steps == 0
    assert correction is not None
    assert correction.cause == "migration"
    assert correction.tiers.migration_bytes_per_s == pytest.approx(NOMINAL / 2)
    assert correction.profile is PROFILE
    assert correction.text == "migration bandwidth is 170.7 KiB/s, not 341.3 KiB/s"


@pytest.mark.parametrize("steps_between", [2, 3, 10, 50])
def test_it_is_detected_if_many_steps_pass_between_two_looks(steps_between: int) -> None:
    steps = Steps(every=4 * steps_between)
    passed, correction = steps.run(4 * steps_between, rate=NOMINAL / 2, stall=0.1)
    assert passed <= 2 * steps_between
    assert correction is not None
    assert correction.tiers.migration_bytes_per_s == pytest.approx(NOMINAL / 2)


def test_a_lower_bandwidth_without_harm_is_ignored() -> None:
    assert Steps().run(50, NOMINAL / 2) == (50, None)
    assert Steps().run(50, NOMINAL / 2, stall=0.004) == (50, None)


def test_harm_that_the_bandwidth_does_not_explain_makes_no_correction() -> None:
    assert Steps().run(50, 0.95 * NOMINAL, stall=0.1) == (50, None)


def test_a_small_drop_is_accepted_after_many_steps() -> None:
    steps = Steps()
    assert steps.run(WINDOW_STEPS // 2, 0.85 * NOMINAL, stall=0.1)[1] is None
    assert not steps.corrector.needs_times  # the bandwidth explains the stall
    assert steps.run(50) == (50, None)
    passed, correction = Steps().run(50, 0.85 * NOMINAL, stall=0.1)
    assert passed == WINDOW_STEPS - 1
    assert correction is not None
    assert correction.tiers.migration_bytes_per_s == pytest.approx(0.85 * NOMINAL)


def faulting(steps: Steps, number: int) -> Correction | None:
    """Run `number` steps, each with 1000 faults of 1 ms; returns the correction or None."""
    for _ in range(number):
        before = steps.progress
        steps.progress = replace(
            before,
            steps=before.steps + 1,
            time_ns=before.time_ns + STEP_NS,
            faults=before.faults + 1000,
            fault_reads=before.fault_reads + 1000,
            fault_read_ns=before.fault_read_ns + 1000e6,
        )
        correction = steps.corrector.look(steps.progress)
        if correction is not None:
            return correction
    return None


def on_paged_tiers(plan: Plan = PLAN) -> Steps:
    """A training on paged tiers. Its plan assumes that a fault has a latency of 50 us."""
    steps, tiers = Steps(), two_tiers(NOMINAL)
    slow = replace(tiers.tiers[1], read_latency_ns=50e3)
    tiers = replace(tiers, tiers=(tiers.tiers[0], slow), paged=True)
    steps.corrector = Corrector(tiers)
    steps.corrector.entered(plan, PROFILE, tiers, steps.progress)
    return steps


def test_slow_faults_are_planned_with() -> None:
    correction = faulting(on_paged_tiers(), 50)
    assert correction is not None
    assert correction.cause == "faults"
    assert correction.profile is PROFILE
    latency_ns = 1e6 - FAULT_BYTES * 1e9 / correction.tiers.tiers[1].read_bytes_per_s
    assert correction.tiers.tiers[1].read_latency_ns == pytest.approx(latency_ns)
    assert correction.text == f"the latency of a fault is {latency_ns / 1000:.0f} us, not 50 us"


def test_a_correction_of_faults_waits_for_its_answer() -> None:
    steps = on_paged_tiers()
    assert faulting(steps, 50) is not None
    assert faulting(steps, 50) is None
    steps.corrector.kept()
    assert faulting(steps, 50) is None


def test_slow_faults_do_not_delay_other_corrections() -> None:
    steps = on_paged_tiers()
    found = faulting(steps, 50)
    assert found is not None
    steps.corrector.kept()
    steps.run(1, late=len(PLAN.moves))
    assert steps.corrector.needs_times
    # Other corrections assume the measured fault latency, even though replanning for it found no
    # better plan (kept() above).
    correction = steps.corrector.timed(np.array([TIMES * [1.5, 0.5, 1.0, 1.0]] * WINDOW_STEPS))
    assert correction is not None
    assert correction.tiers == found.tiers


def test_faults_count_on_paged_tiers_and_for_plans_with_moves_only() -> None:
    assert faulting(Steps(), 50) is None
    assert faulting(on_paged_tiers(replace(PLAN, moves=PLAN.moves[:0])), 50) is None


def test_too_few_bytes_give_no_bandwidth() -> None:
    steps = Steps()
    tenth = Progress(101, STEP_NS, MOVED / 20, MOVED / 20, STEP_NS / 10)
    steps.corrector.entered(PLAN, PROFILE, two_tiers(NOMINAL), Progress(100))
    assert steps.corrector.look(tenth) is None


def test_a_drop_is_detected_after_a_thousand_good_steps() -> None:
    steps = Steps()
    assert steps.run(1000) == (1000, None)
    passed, correction = steps.run(10, NOMINAL / 2, stall=0.2)
    assert passed <= 2
    assert correction is not None


@pytest.mark.parametrize("share", [0.5, 0.85])
def test_recovered_bandwidth_is_used_up_to_the_nominal_one(share: float) -> None:
    steps = Steps(assumed=share * NOMINAL)
    passed, correction = steps.run(100, 2 * NOMINAL)
    assert passed == WINDOW_STEPS - 1
    assert correction is not None
    assert correction.tiers.migration_bytes_per_s == NOMINAL
    assert Steps().run(100, 2 * NOMINAL) == (100, None)


def test_a_correction_waits_for_its_answer_and_the_next_one_comes_later() -> None:
    steps = Steps()
    waited = []
    for _ in range(3):
        passed, correction = steps.run(100, NOMINAL / 2, stall=0.1)
        assert correction is not None
        assert steps.run(3, NOMINAL / 2, stall=0.1) == (3, None)
        steps.corrector.left()
        steps.enter(NOMINAL)
        waited.append(passed)
    assert waited == [0, PATIENCE_STEPS - 1, 2 * PATIENCE_STEPS - 1]
    steps.run(EARNED_STEPS)
    steps.corrector.left()
    steps.enter(NOMINAL)
    assert steps.run(100, NOMINAL / 2, stall=0.1)[0] == 0


def test_a_correction_without_a_new_plan_is_repeated_much_later() -> None:
    steps = Steps()
    assert steps.run(100, NOMINAL / 2, stall=0.1)[1] is not None
    steps.corrector.kept()
    passed, correction = steps.run(1000, NOMINAL / 2, stall=0.1)
    assert passed == pytest.approx(RECHECK_STEPS, abs=1)
    assert correction is not None


def test_times_are_needed_if_the_bandwidth_does_not_explain_the_harm() -> None:
    steps = Steps()
    steps.run(10)
    assert not steps.corrector.needs_times
    steps.run(3, stall=0.1)
    assert steps.corrector.needs_times
    assert steps.corrector.timed(np.array([TIMES] * WINDOW_STEPS)) is None
    assert not steps.corrector.needs_times


def test_other_times_are_planned_with() -> None:
    steps = Steps()
    steps.run(3, stall=0.1)
    found = TIMES * [1.5, 0.5, 1.0, 1.0]
    correction = steps.corrector.timed(np.array([found] * WINDOW_STEPS))
    assert correction is not None
    assert correction.cause == "times"
    assert correction.profile.stretches["time_ns"].tolist() == found.tolist()
    assert correction.tiers == two_tiers(NOMINAL)
    assert "25%" in correction.text


def test_steps_that_are_slower_as_a_whole_have_the_same_plan() -> None:
    steps = Steps()
    steps.run(3, stall=0.1)
    assert steps.corrector.timed(np.array([1.3 * TIMES] * WINDOW_STEPS)) is None
    found = TIMES * [3.0, 1.0, 2.0, 2.0]
    correction = steps.corrector.timed(np.array([found] * WINDOW_STEPS))
    assert correction is not None
    planned_ns = correction.profile.stretches["time_ns"].astype(np.float64)
    assert planned_ns.sum() == pytest.approx(STEP_NS)
    assert planned_ns == pytest.approx(found * STEP_NS / found.sum())


def test_steps_that_are_faster_as_a_whole_are_planned_with() -> None:
    steps = Steps()
    steps.run(3, stall=0.1)
    correction = steps.corrector.timed(np.array([0.8 * TIMES] * WINDOW_STEPS))
    assert correction is not None
    assert correction.profile.stretches["time_ns"].astype(float) == pytest.approx(0.8 * TIMES)


def timed(seed: int, scatter: float, skew: float) -> Correction | None:
    """The correction for steps of 400 stretches, each with a profiled time of 1 ms.

    scatter: relative standard deviation of a stretch's time, from step to step.
    skew: relative standard deviation of the stretches' mean times, which scatter around the
        profiled time.
    """
    stretches = np.zeros(400, STRETCH_DTYPE)
    stretches["time_ns"] = 1_000_000
    corrector = Corrector(two_tiers(NOMINAL))
    profile = replace(PROFILE, stretches=stretches)
    corrector.entered(PLAN, profile, two_tiers(NOMINAL), Progress())
    random = np.random.default_rng(seed)
    pace = 1e6 * random.normal(1.0, skew, len(stretches))
    steps = pace * random.normal(1.0, scatter, (WINDOW_STEPS, len(stretches)))
    return corrector.timed(np.maximum(steps, 0.0))


@given(st.integers(0, 1 << 32), st.floats(0.0, 0.5))
def test_scatter_leads_to_no_correction(seed: int, scatter: float) -> None:
    assert timed(seed, scatter, 0.0) is None


@given(st.integers(0, 1 << 32), st.floats(0.0, 0.25))
def test_a_wrong_profile_is_detected_despite_the_scatter(seed: int, scatter: float) -> None:
    assert timed(seed, scatter, 0.3) is not None
