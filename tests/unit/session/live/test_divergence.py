# SPDX-License-Identifier: Apache-2.0
"""When diverged steps are a reason to leave a plan, and when they are not."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterable, Iterator

import pytest

from sentineld.observe.control_segment import ControlSegment, ShimWords
from sentineld.session.live.divergence import (
    EARNED_STEPS,
    PATIENCE_STEPS,
    PATIENCE_STEPS_MAX,
    POOR_FIT,
    Divergence,
    Patience,
    Verdict,
)
from tests.unit.segment import Writer

FOLLOWS = Verdict()


class Steps:
    """Steps of a process whose control words are checked after each step or every few steps."""

    def __init__(self, patience: Patience) -> None:
        self._writer = Writer(step=100, diverged_steps=7)
        self._segment = ControlSegment(self._writer.fd)
        os.close(self._writer.fd)
        self.divergence = Divergence(self.words(), patience)

    def words(self) -> ShimWords:
        return self._segment.words()

    def step(self, diverges: bool) -> None:
        header = self._writer.header
        header["step"] += 1
        header["diverged_steps"] += diverges
        header["diverged_in_row"] = (header["diverged_in_row"] + 1) * diverges

    def run(self, pattern: Iterable[bool], look_every: int = 1) -> list[Verdict]:
        """The verdicts other than FOLLOWS during these steps, until the plan is left."""
        news: list[Verdict] = []
        for number, diverges in enumerate(pattern, 1):
            self.step(diverges)
            if number % look_every == 0:
                verdict = self.divergence.look(self.words())
                news += [verdict] if verdict != FOLLOWS else []
                if verdict.leave:
                    break
        return news


def alike(pattern: str, times: int) -> Iterator[bool]:
    """A repeated pattern of steps. X: a step that diverges. Dot: a step that follows the plan."""
    return (letter == "X" for letter in pattern * times)


def test_three_in_a_row_leave_the_plan() -> None:
    steps = Steps(Patience())
    assert steps.run(alike("....XX.XX.", 1)) == []
    assert steps.run(alike("XXX", 1)) == [Verdict(True, "3 steps in a row diverged from the plan")]
    assert steps.divergence.followed_steps(steps.words()) == 6


@pytest.mark.parametrize("look_every", [1, 5, 48, 100])
def test_single_diverged_steps_never_leave_the_plan(look_every: int) -> None:
    assert Steps(Patience()).run(alike("...........X", 50), look_every) == []


@pytest.mark.parametrize("look_every", [1, 7, 64])
def test_every_second_step_diverging_is_reported_once(look_every: int) -> None:
    steps = Steps(Patience())
    assert steps.run(alike(".X", 200), look_every) == [Verdict(text=POOR_FIT)]
    assert steps.run(alike(".", 100)) == [Verdict(text="steps follow the plan again")]
    assert steps.run(alike(".", 100)) == []
    assert steps.run(alike(".X", 200), look_every) == [Verdict(text=POOR_FIT)]


def test_a_plan_that_fits_the_fewer_steps_is_left() -> None:
    (verdict,) = Steps(Patience()).run(alike(".XX", 40))
    assert verdict.leave
    assert verdict.text.endswith("of 32 steps diverged from the plan")


def test_patience_grows_with_plans_that_fitted_few_steps() -> None:
    patience = Patience()
    waited = []
    for _ in range(10):
        steps = Steps(patience)
        news = steps.run(alike("X", 10_000))
        assert news[-1].leave
        assert news[:-1] in ([], [Verdict(text=POOR_FIT)])
        followed = steps.divergence.followed_steps(steps.words())
        assert followed == 0
        patience.left(followed)
        waited.append(steps.words().step - 100)
    growing = [PATIENCE_STEPS << n for n in range(7)]
    assert waited == [3, *growing, PATIENCE_STEPS_MAX, PATIENCE_STEPS_MAX]


def test_a_plan_that_has_paid_for_itself_is_left_at_once() -> None:
    patience = Patience()
    patience.left(0)
    patience.left(0)
    steps = Steps(patience)
    assert not steps.divergence.may_leave(steps.words())
    (verdict,) = steps.run(alike("." * EARNED_STEPS + "XXX", 1))
    assert verdict.leave
    patience.left(EARNED_STEPS)
    assert patience.steps == 0


@pytest.mark.parametrize("pattern", ["still", "alternating"])
def test_looks_at_a_training_that_does_not_advance_need_no_memory(pattern: str) -> None:
    steps = Steps(Patience())
    steps.run(alike(".", 2 * EARNED_STEPS))
    before = steps.words()
    steps.run(alike(".", 2))
    looks = [steps.words(), before if pattern == "alternating" else steps.words()]
    tracemalloc.start()
    try:
        for number in range(20_000):
            assert steps.divergence.look(looks[number % 2]) == FOLLOWS
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes < 10_000
