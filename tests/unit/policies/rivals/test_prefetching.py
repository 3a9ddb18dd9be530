# SPDX-License-Identifier: Apache-2.0
"""The prefetcher with a known order of executions. test_deepum.py tests it with a learned one."""

from __future__ import annotations

from sentineld.plan.policy import MoveRequest
from sentineld.policies.rivals.prefetching import Prefetcher, StepOrder
from tests.unit.policies.rivals.observing import seen


def test_a_step_repeats() -> None:
    order = StepOrder(4)
    assert order.predict(2) == [0, 1]
    order.note(2)
    assert order.predict(3) == [3, 0, 1]


def test_blocks_move_once_an_execution_has_used_them() -> None:
    prefetcher = Prefetcher(1, StepOrder(4))
    for stretch in range(3):
        assert prefetcher.tick(seen(stretch, [0, 0, 10, 10])) == []
    # Stretch 3 has ended. Stretch 0 begins and uses cell 0. Cells 2 and 3 have both been fast since
    # the first tick, so the cell with the lower number, cell 2, is evicted.
    assert prefetcher.tick(seen(3, [0, 0, 10, 10])) == [
        MoveRequest(2, 1, 10),
        MoveRequest(0, 0, 10),
    ]
