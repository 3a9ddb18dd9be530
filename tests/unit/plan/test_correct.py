# SPDX-License-Identifier: Apache-2.0
"""When measurements under a plan lead to a correction, and when they do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.profile import STRETCH_DTYPE
from sentineld.model.tiers import Tier, Tiers
from sentineld.model.timing import FAULT_BYTES
from sentineld.plan.correct import (
    EARNED_STEPS,
    ENTERING_STEPS,
    FASTER_STEPS,
    FAULT_LATENCY_MAX_NS,
    FAULT_READS_MIN,
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
        """Run steps until there is a correction.

        Returns the number of whole steps that passed, and the correction or None. rate: moved
        bytes per second. stall: stalled share of each step. late: late moves in each step.
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


IDLE_NS, WAKE_NS = 50e3, 20e3


def paged_tiers(latency_ns: float = IDLE_NS) -> Tiers:
    """A file from which FAULT_BYTES are read in 100 us, apart from the latency."""
    file = Tier((1,), 1 << 30, FAULT_BYTES * 1e4, 1e9, latency_ns, wake_ns=WAKE_NS)
    return Tiers((Tier((0,), 1 << 30), file), NOMINAL, "paged", paged=True)


class Faulting:
    """A training on paged tiers with steps of 2 s. A fault on an idle disk takes 130 us in the
    pager."""

    def __init__(self, assumed_ns: float = IDLE_NS, nominal: Tiers | None = None) -> None:
        self.corrector = Corrector(nominal or paged_tiers())
        self.progress = Progress()
        self.enter(paged_tiers(assumed_ns))

    def enter(self, tiers: Tiers) -> None:
        self.corrector.entered(PLAN, PROFILE, tiers, self.progress)

    def run(self, steps: int, fault_ns: float, faults: int = 1000) -> tuple[int, Correction | None]:
        """Run steps until there is a correction; returns their number, and the correction.

        fault_ns: the mean time of a fault in the pager. faults: the number of each step's faults.
        """
        for number in range(1, steps + 1):
            before = self.progress
            self.progress = replace(
                before,
                steps=before.steps + 1,
                time_ns=before.time_ns + 2e9,
                fault_reads=before.fault_reads + faults,
                fault_read_ns=before.fault_read_ns + faults * fault_ns,
            )
            correction = self.corrector.look(self.progress)
            if correction is not None:
                return number, correction
        return steps, None


SETTLED = WINDOW_STEPS + ENTERING_STEPS


def test_slow_faults_are_planned_with() -> None:
    steps, correction = Faulting().run(50, 400e3)
    assert steps == SETTLED
    assert correction is not None
    assert correction.cause == "faults"
    assert correction.profile is PROFILE
    latency_ns = correction.tiers.tiers[1].read_latency_ns
    assert latency_ns == pytest.approx(400e3 - 100e3 + WAKE_NS)
    assert correction.tiers == paged_tiers(latency_ns)
    assert correction.text == "the latency of a fault is 320 us, not 50 us"


def test_the_first_steps_under_a_plan_do_not_count() -> None:
    training = Faulting()
    assert training.run(ENTERING_STEPS, 10e6, 8000)[1] is None
    assert training.run(50, 130e3, 500) == (50, None)


def test_a_deviation_that_changes_little_is_ignored() -> None:
    assert Faulting().run(50, 400e3, faults=100) == (50, None)
    assert Faulting().run(50, 160e3) == (50, None)


def test_few_faults_give_no_latency() -> None:
    few = FAULT_READS_MIN // WINDOW_STEPS
    assert Faulting().run(50, 40e6, faults=few)[1] is not None
    assert Faulting().run(50, 40e6, faults=few - 1) == (50, None)


def test_a_latency_has_limits() -> None:
    correction = Faulting().run(50, 1e18)[1]
    assert correction is not None
    assert correction.tiers == paged_tiers(FAULT_LATENCY_MAX_NS)
    correction = Faulting(assumed_ns=400e3).run(1000, -1e18)[1]
    assert correction is not None
    assert correction.tiers == paged_tiers()


def test_faults_that_become_faster_are_planned_with_much_later_each_time() -> None:
    training = Faulting(assumed_ns=300e3)
    waited = []
    for _ in range(3):
        steps, correction = training.run(10_000, 130e3)
        assert correction is not None
        assert correction.tiers == paged_tiers()
        waited.append(steps)
        training.corrector.left()
        training.enter(paged_tiers(300e3))
    assert waited == [FASTER_STEPS, 2 * FASTER_STEPS, 4 * FASTER_STEPS]


def test_a_latency_for_which_no_plan_was_better_is_not_tried_again() -> None:
    training = Faulting()
    assert training.run(50, 400e3)[1] is not None
    assert training.run(50, 400e3) == (50, None)  # the answer is pending
    training.corrector.kept()
    assert training.run(5000, 400e3) == (5000, None)
    assert training.run(5000, 440e3) == (5000, None)
    assert training.run(5000, 600e3)[1] is not None


def test_faults_do_not_delay_the_measurement_of_times() -> None:
    training = Faulting()
    assert training.run(50, 400e3)[1] is not None
    training.corrector.kept()
    training.progress = replace(training.progress, late_moves=100)
    assert training.run(1, 400e3)[1] is None
    assert training.corrector.needs_times


def test_a_plan_without_moves_is_not_corrected() -> None:
    training = Faulting()
    plan = replace(PLAN, moves=PLAN.moves[:0])
    training.corrector.entered(plan, PROFILE, paged_tiers(), training.progress)
    assert training.run(50, 400e3) == (50, None)


@pytest.mark.parametrize(
    "nominal", [two_tiers(NOMINAL), paged_tiers(0.0), replace(paged_tiers(), paged=False)]
)
def test_without_the_latency_of_an_idle_disk_nothing_is_corrected(nominal: Tiers) -> None:
    assert Faulting(nominal=nominal).run(50, 400e3) == (50, None)


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
    skew: relative standard deviation of the stretches' mean times from the profiled time.
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
