# SPDX-License-Identifier: Apache-2.0
"""What is measured under a plan, and whether it is reason enough for another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.model.profile import STRETCH_DTYPE
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
PROMISED = MOVED / 3
"""Three of a step's four seconds."""


class Steps:
    """A training whose steps are looked at four times each, or at every so many quarters."""

    def __init__(self, assumed: float = PROMISED, every: int = 1) -> None:
        self.every = every
        self.corrector = Corrector(PROMISED)
        self.progress = Progress(steps=100)
        self.enter(assumed)

    def enter(self, assumed: float) -> None:
        self.corrector.entered(PLAN, PROFILE, two_tiers(assumed), self.progress)

    def run(
        self, steps: int, rate: float = PROMISED, stall: float = 0.0, late: int = 0
    ) -> tuple[int, Correction | None]:
        """(whole steps that passed, what was then to be done). stall: part of a step."""
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


def test_what_keeps_its_promises_is_kept() -> None:
    assert Steps().run(50) == (50, None)


@pytest.mark.parametrize(("stall", "late"), [(0.1, 0), (0.0, len(PLAN.moves))])
def test_half_the_bandwidth_is_seen_within_the_first_step_that_it_harms(
    stall: float, late: int
) -> None:
    steps, correction = Steps().run(10, PROMISED / 2, stall, late)
    assert steps == 0
    assert correction is not None
    assert correction.cause == "migration"
    assert correction.tiers.migration_bytes_per_s == pytest.approx(PROMISED / 2)
    assert correction.profile is PROFILE
    assert correction.text == "pages move at 170.7 KiB/s, not 341.3 KiB/s"


@pytest.mark.parametrize("steps_between", [2, 3, 10, 50])
def test_it_is_seen_where_many_steps_pass_between_two_looks(steps_between: int) -> None:
    steps = Steps(every=4 * steps_between)
    passed, correction = steps.run(4 * steps_between, rate=PROMISED / 2, stall=0.1)
    assert passed <= 2 * steps_between
    assert correction is not None
    assert correction.tiers.migration_bytes_per_s == pytest.approx(PROMISED / 2)


def test_a_lower_bandwidth_that_does_no_harm_is_let_be() -> None:
    assert Steps().run(50, PROMISED / 2) == (50, None)
    assert Steps().run(50, PROMISED / 2, stall=0.004) == (50, None)


def test_harm_that_the_bandwidth_does_not_explain_makes_no_correction() -> None:
    assert Steps().run(50, 0.95 * PROMISED, stall=0.1) == (50, None)


def test_a_little_less_is_believed_once_many_steps_show_it() -> None:
    steps = Steps()
    assert steps.run(WINDOW_STEPS // 2, 0.85 * PROMISED, stall=0.1)[1] is None
    assert not steps.corrector.wants_times  # it is the bandwidth
    assert steps.run(50) == (50, None)
    passed, correction = Steps().run(50, 0.85 * PROMISED, stall=0.1)
    assert passed == WINDOW_STEPS - 1
    assert correction is not None
    assert correction.tiers.migration_bytes_per_s == pytest.approx(0.85 * PROMISED)


def test_who_moves_hardly_anything_tells_nothing_of_the_bandwidth() -> None:
    steps = Steps()
    tenth = Progress(101, STEP_NS, MOVED / 20, MOVED / 20, STEP_NS / 10)
    steps.corrector.entered(PLAN, PROFILE, two_tiers(PROMISED), Progress(100))
    assert steps.corrector.look(tenth) is None


def test_a_fall_is_seen_after_a_thousand_good_steps() -> None:
    steps = Steps()
    assert steps.run(1000) == (1000, None)
    passed, correction = steps.run(10, PROMISED / 2, stall=0.2)
    assert passed <= 2
    assert correction is not None


@pytest.mark.parametrize("share", [0.5, 0.85])
def test_bandwidth_that_is_back_is_used_again_but_no_more_than_promised(share: float) -> None:
    steps = Steps(assumed=share * PROMISED)
    passed, correction = steps.run(100, 2 * PROMISED)
    assert passed == WINDOW_STEPS - 1
    assert correction is not None
    assert correction.tiers.migration_bytes_per_s == PROMISED
    assert Steps().run(100, 2 * PROMISED) == (100, None)


def test_a_correction_waits_for_its_answer_and_the_next_one_for_longer() -> None:
    steps = Steps()
    waited = []
    for _ in range(3):
        passed, correction = steps.run(100, PROMISED / 2, stall=0.1)
        assert correction is not None
        assert steps.run(3, PROMISED / 2, stall=0.1) == (3, None)
        steps.corrector.left()
        steps.enter(PROMISED)
        waited.append(passed)
    assert waited == [0, PATIENCE_STEPS - 1, 2 * PATIENCE_STEPS - 1]
    steps.run(EARNED_STEPS)
    steps.corrector.left()
    steps.enter(PROMISED)
    assert steps.run(100, PROMISED / 2, stall=0.1)[0] == 0


def test_what_came_to_no_plan_is_looked_at_again_much_later() -> None:
    steps = Steps()
    assert steps.run(100, PROMISED / 2, stall=0.1)[1] is not None
    steps.corrector.kept()
    passed, correction = steps.run(1000, PROMISED / 2, stall=0.1)
    assert passed == pytest.approx(RECHECK_STEPS, abs=1)
    assert correction is not None


def test_times_are_wanted_where_harm_is_not_the_bandwidth_s() -> None:
    steps = Steps()
    steps.run(10)
    assert not steps.corrector.wants_times
    steps.run(3, stall=0.1)
    assert steps.corrector.wants_times
    assert steps.corrector.timed(np.array([TIMES] * WINDOW_STEPS)) is None
    assert not steps.corrector.wants_times


def test_other_times_are_planned_with() -> None:
    steps = Steps()
    steps.run(3, stall=0.1)
    found = TIMES * [1.5, 0.5, 1.0, 1.0]
    correction = steps.corrector.timed(np.array([found] * WINDOW_STEPS))
    assert correction is not None
    assert correction.cause == "times"
    assert correction.profile.stretches["time_ns"].tolist() == found.tolist()
    assert correction.tiers == two_tiers(PROMISED)
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
    """What is said of steps of many stretches whose profiled time was 1 ms each."""
    stretches = np.zeros(400, STRETCH_DTYPE)
    stretches["time_ns"] = 1_000_000
    corrector = Corrector(PROMISED)
    profile = replace(PROFILE, stretches=stretches)
    corrector.entered(PLAN, profile, two_tiers(PROMISED), Progress())
    random = np.random.default_rng(seed)
    pace = 1e6 * random.normal(1.0, skew, len(stretches))
    steps = pace * random.normal(1.0, scatter, (WINDOW_STEPS, len(stretches)))
    return corrector.timed(np.maximum(steps, 0.0))


@given(st.integers(0, 1 << 32), st.floats(0.0, 0.5))
def test_scatter_alone_is_no_reason(seed: int, scatter: float) -> None:
    assert timed(seed, scatter, 0.0) is None


@given(st.integers(0, 1 << 32), st.floats(0.0, 0.25))
def test_a_profile_that_is_off_is_seen_through_the_scatter(seed: int, scatter: float) -> None:
    assert timed(seed, scatter, 0.3) is not None
