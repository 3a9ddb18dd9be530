# SPDX-License-Identifier: Apache-2.0
"""A training step ends when the optimizer that steps least often finishes step()."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sentineld.shim.steps import FORGOTTEN_AFTER, Calls, StepEnds


class Optimizer:
    pass


def ends(cycle: str, times: int) -> list[str]:
    """Let the optimizers step in the order of `cycle`, again and again. Returns the optimizers that
    ended a step, for each cycle in the second half of the `times` cycles."""
    tracker = StepEnds()
    optimizers = {name: Optimizer() for name in cycle}
    found = []
    for turn in range(times):
        ended = [name for name in cycle if tracker.ended(optimizers[name])]
        if turn >= times // 2:
            found.append("".join(ended))
    return found


@pytest.mark.parametrize(
    ("cycle", "last"), [("a", "a"), ("ab", "a"), ("abc", "a"), ("aaaaab", "b"), ("aab", "b")]
)
def test_one_step_ends_in_each_cycle(cycle: str, last: str) -> None:
    assert set(ends(cycle, 10)) == {last}


@pytest.mark.parametrize("count", [65, 66, 200])
def test_one_step_ends_in_each_cycle_if_each_parameter_has_its_own_optimizer(count: int) -> None:
    cycle = "".join(chr(0x4E00 + number) for number in range(count))
    assert set(ends(cycle, 10)) == {cycle[0]}
    # As in a GAN whose discriminator is trained five times as often as its generator.
    other = "".join(chr(0x3041 + number) for number in range(80))
    assert set(ends(cycle * 5 + other, 10)) == {other[0]}


def test_a_deleted_optimizer_is_replaced_at_once() -> None:
    tracker = StepEnds()
    first, second = Optimizer(), Optimizer()
    assert tracker.ended(first)
    assert not tracker.ended(second)
    del first
    assert tracker.ended(second)
    assert tracker.ended(second)


@pytest.mark.parametrize("count", [1, 2, 200])
def test_an_unused_optimizer_is_replaced(count: int) -> None:
    tracker = StepEnds()
    unused, others = Optimizer(), [Optimizer() for _ in range(count)]
    assert tracker.ended(unused)
    found = [
        sum([tracker.ended(optimizer) for optimizer in others]) for _ in range(FORGOTTEN_AFTER + 5)
    ]
    assert found[: FORGOTTEN_AFTER - 1] == [0] * (FORGOTTEN_AFTER - 1)
    assert found[FORGOTTEN_AFTER + 1 :] == [1] * 4
    assert sum(found) in (5, 6)


class Step:
    """Calls step() of an optimizer as torch does: the frame of each call calls both hooks."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.optimizer = Optimizer()
        self.ends: list[bool] = []

    def __call__(self, nested: str = "") -> None:
        """nested: what the call does: "(...)" is a nested call, and "x" raises an error."""
        self.calls.begin(self.optimizer, sys._getframe())
        if nested.startswith("("):
            inner, nested = nested[1:].rsplit(")", 1)
            self(inner)
        if nested:
            raise ValueError("the step fails")
        self.ends.append(self.calls.end(self.optimizer, sys._getframe()))


def failing(step: Step, nested: str) -> None:
    with pytest.raises(ValueError, match="the step fails"):
        step(nested)


def deeper(function: Callable[[], None], frames: int) -> None:
    if frames:
        deeper(function, frames - 1)
    else:
        function()


@pytest.mark.parametrize(
    ("nested", "ends"), [("", [True]), ("()", [False, True]), ("(())", [False, False, True])]
)
@pytest.mark.parametrize("error", ["", "x", "(x)", "()x", "((x))"])
@pytest.mark.parametrize("frames", [0, 1, 5])
def test_only_the_outermost_of_nested_calls_ends_a_step(
    nested: str, ends: list[bool], error: str, frames: int
) -> None:
    """A call that raises an error has no end. It changes nothing for the next call, which may come
    from another function."""
    step = Step()
    for _ in range(3):
        step(nested)
    assert step.ends == 3 * ends
    if error:
        failing(step, error)
    step.ends.clear()
    deeper(lambda: step(nested), frames)
    step(nested)
    assert step.ends == 2 * ends


def test_a_call_can_be_repeated_while_its_error_is_handled() -> None:
    step = Step()
    try:
        step("x")
    except ValueError:
        step()
    assert step.ends == [True]


def test_the_calls_of_optimizers_do_not_affect_each_other() -> None:
    first, second = Step(), Step()
    second.calls = first.calls
    first.calls.begin(first.optimizer, sys._getframe())
    second()
    assert second.ends == [True]
    assert first.calls.end(first.optimizer, sys._getframe())
    assert not first.calls.end(first.optimizer, sys._getframe())


def test_threads_may_call_optimizers_at_the_same_time() -> None:
    calls, steps = Calls(), [Step() for _ in range(4)]

    def train(step: Step) -> None:
        step.calls = calls
        for _ in range(5000):
            step()

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(len(steps)) as pool:
            list(pool.map(train, steps))
    finally:
        sys.setswitchinterval(before_s)
    assert all(step.ends == [True] * 5000 for step in steps)


def test_a_frame_may_get_the_address_of_one_that_an_error_has_ended() -> None:
    calls, wrapped, wrapping = Calls(), Optimizer(), Optimizer()
    frame = sys._getframe()
    calls.begin(wrapped, frame)  # raises an error, so it has no end
    calls.begin(wrapping, frame)

    def inner() -> bool:
        calls.begin(wrapped, sys._getframe())
        return calls.end(wrapped, sys._getframe())

    assert inner()
    assert calls.end(wrapping, frame)
