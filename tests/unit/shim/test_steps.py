# SPDX-License-Identifier: Apache-2.0
"""A training step ends when the optimizer that steps least often finishes step()."""

from __future__ import annotations

import pytest

from sentineld.shim.steps import FORGOTTEN_AFTER, StepEnds


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


def test_a_deleted_optimizer_is_replaced_at_once() -> None:
    tracker = StepEnds()
    first, second = Optimizer(), Optimizer()
    assert tracker.ended(first)
    assert not tracker.ended(second)
    del first
    assert tracker.ended(second)
    assert tracker.ended(second)


def test_an_unused_optimizer_is_replaced() -> None:
    tracker = StepEnds()
    first, second = Optimizer(), Optimizer()
    assert tracker.ended(first)
    found = [tracker.ended(second) for _ in range(FORGOTTEN_AFTER + 5)]
    assert found == [False] * FORGOTTEN_AFTER + [True] * 5
