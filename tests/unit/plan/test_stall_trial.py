# SPDX-License-Identifier: Apache-2.0
"""Trials that show whether a stall at a boundary shortens the step, with scripted step times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sentineld.plan.stall_trial import SETTLING_STEPS, STEPS_PER_BOUNDARY, Decisions, StallTrial

COUNT = 5


class Steps:
    """A training that passes boundaries. A stall at boundary b costs cost[b] ns. Passing b without
    a stall costs loss[b] ns."""

    def __init__(self, trial: StallTrial, cost: dict[int, float], loss: dict[int, float]) -> None:
        self.trial, self.cost, self.loss = trial, cost, loss
        self.now, self.time_ns = 0, 0.0
        self.stalled: list[tuple[int, int]] = []  # (step, boundary)

    def run(self, boundaries: int) -> None:
        for _ in range(boundaries):
            self.trial.passed(self.now, self.time_ns)
            step, at = divmod(self.now, COUNT)
            if at in self.cost and self.trial.stalls(self.now):
                self.stalled.append((step, at))
                self.time_ns += self.cost[at]
            elif at in self.cost:
                self.time_ns += self.loss[at]
            self.time_ns += 100.0
            self.now += 1

    def until_decided(self) -> int:
        """The number of steps until all boundaries are decided."""
        while self.trial.undecided:
            self.run(1)
            assert self.now < 1000
        return -(-self.now // COUNT)


def test_the_faster_choice_is_kept() -> None:
    steps = Steps(StallTrial([1, 3], COUNT), {1: 10.0, 3: 30.0}, {1: 20.0, 3: 20.0})
    steps.until_decided()
    assert steps.trial.decisions == Decisions(stall=1, leave=1, undecided=0)
    steps.stalled.clear()
    begun = steps.now // COUNT + 1
    steps.run(3 * COUNT)
    assert {at for step, at in steps.stalled if step >= begun} == {1}


def test_each_boundary_takes_two_steps() -> None:
    boundaries = [0, 1, 3, 4]
    cost = dict.fromkeys(boundaries, 10.0)
    steps = Steps(StallTrial(boundaries, COUNT), cost, dict.fromkeys(boundaries, 0.0))
    taken = steps.until_decided()
    # A trial begins and ends at a boundary within a step, so the trials can extend into one more
    # step.
    assert taken <= SETTLING_STEPS + STEPS_PER_BOUNDARY * len(boundaries) + 1
    assert sorted(at for _, at in steps.stalled) == boundaries  # one stall each


def test_nothing_stalls_while_the_plan_settles() -> None:
    steps = Steps(StallTrial([2], COUNT), {2: 0.0}, {2: 1.0})
    steps.until_decided()
    assert steps.stalled[0] == (SETTLING_STEPS, 2)


def test_an_interrupted_trial_is_repeated() -> None:
    steps = Steps(StallTrial([2], COUNT), {2: 10.0}, {2: 20.0})
    steps.run((SETTLING_STEPS + 1) * COUNT)
    assert len(steps.stalled) == 1
    steps.now += 7 * COUNT + 1  # the process has not followed the plan for a while
    steps.time_ns += 1e9
    steps.run(SETTLING_STEPS * COUNT)
    assert len(steps.stalled) == 1
    steps.until_decided()
    assert steps.trial.decisions == Decisions(stall=1, leave=0, undecided=0)


def test_without_boundaries_there_is_nothing_to_decide() -> None:
    trial = StallTrial([], COUNT)
    trial.passed(0, 0.0)
    assert not trial.undecided
    assert not trial.stalls(0)


@given(
    st.dictionaries(
        st.integers(0, COUNT - 1), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1
    ),
    st.integers(0, 3 * COUNT),
)
def test_every_boundary_gets_its_faster_choice(
    choices: dict[int, tuple[int, int]], begin: int
) -> None:
    cost = {at: float(one) for at, (one, _) in choices.items()}
    loss = {at: float(other) for at, (_, other) in choices.items()}
    steps = Steps(StallTrial(choices, COUNT), cost, loss)
    steps.now = begin
    steps.until_decided()
    next_step = (steps.now // COUNT + 1) * COUNT
    for at, (one, other) in choices.items():
        assert steps.trial.stalls(next_step + at) == (one < other)
