# SPDX-License-Identifier: Apache-2.0
"""A training step ends when the optimizer that steps least often finishes step()."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("events", "outermost"),
    [
        ("(", ""),
        ("()()", "01"),
        ("(())(())", "13"),
        ("((()))", "2"),
        # Calls that raise an error have no end.
        ("(()" + "(())" * 2, "24"),
        ("((" + "(())" * 2, "3"),
        ("(" + "()" * 2, "1"),
        (")()", "1"),
    ],
)
def test_only_the_outermost_of_nested_calls_ends_a_step(events: str, outermost: str) -> None:
    calls, optimizer, other = Calls(), Optimizer(), Optimizer()
    calls.begin(other)
    ends = []
    for event in events:
        if event == "(":
            calls.begin(optimizer)
        else:
            ends.append(calls.end(optimizer))
    assert "".join(str(at) for at, end in enumerate(ends) if end) == outermost
    assert calls.end(other)
