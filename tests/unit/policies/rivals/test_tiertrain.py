# SPDX-License-Identifier: Apache-2.0
"""TierTrain's queues, checked by hand on the step that passes.py defines: a forward and a backward
pass over six layers. The input of layer k is used in stretches k and 13 - k. Only the inputs of
layers 2, 3 and 4 have a gap between two uses that is long enough for a swap."""

from __future__ import annotations

import pytest

from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.swaps import Gap, open_book
from sentineld.policies.rivals.tiertrain import TierTrain, prefetch_at, prefetch_queue
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, moving
from tests.unit.policies.rivals.passes import PAGES, passes

PLENTY = 100 * PAGES * PAGE


def layer(gap: Gap) -> int:
    """The layer that has the gap's tensor as its input."""
    return gap.tensor + 2


def test_prefetches_are_queued_in_the_order_of_the_backward_pass() -> None:
    book = open_book(passes(), moving(64), PLENTY, True)
    queue = prefetch_queue(book)
    assert [layer(gap) for gap in queue] == [4, 3, 2]
    # The inputs of layers 4, 3 and 2 are used again in stretches 9, 10 and 11. prefetch_at() counts
    # the stretches from the birth of an input. The births are in stretches 3, 2 and 1.
    births = [3, 2, 1]
    for depth, stretches in ((1, [9, 9, 10]), (2, [9, 9, 9]), (16, [9, 9, 9])):
        begins = [prefetch_at(book, queue, at, depth) for at in range(3)]
        assert [begin + birth for begin, birth in zip(begins, births, strict=True)] == stretches


@pytest.mark.parametrize(("depth", "back"), [(1, [8, 9, 10]), (2, [8, 9, 9])])
def test_everything_saved_is_offloaded_even_if_everything_fits(depth: int, back: list[int]) -> None:
    # 128 pages move in each stretch, so that two inputs can be moved at once.
    book = open_book(passes(), moving(128), PLENTY, True)
    assert not book.over.any()
    note = TierTrain("tiertrain", True).relieve(book, moving(128), depth)
    assert note == f"depth of the queue {depth}"
    # Each input is demoted after its last use in the forward pass: in stretches 3, 4 and 5. The
    # first input in the queue would be prefetched in the stretch that uses it (stretch 9, see the
    # test above), so its prefetch begins one stretch earlier.
    swaps = {layer(swap.gap): swap for swap in book.swaps}
    births = {2: 1, 3: 2, 4: 3}
    assert [births[k] + swaps[k].out[0].position for k in (2, 3, 4)] == [3, 4, 5]
    assert [births[k] + swaps[k].back[0].position for k in (4, 3, 2)] == back


def test_the_plan_frees_memory_without_losing_time() -> None:
    plan = policy("tiertrain").plan(passes(), moving(64), PLENTY)
    verify(plan, passes(), PLENTY)
    # Five inputs are alive in stretch 6. Three of them are slow then.
    fast = policy("fast-only").plan(passes(), moving(64), PLENTY)
    assert plan.predicted.peak_fast_bytes < fast.predicted.peak_fast_bytes
    assert simulate(passes(), policy("tiertrain"), moving(64), PLENTY).step_seconds == (
        pytest.approx(14)
    )


def test_what_does_not_fit_stays_slow() -> None:
    room = PAGES * PAGE
    plan = policy("tiertrain").plan(passes(), moving(64), room)
    verify(plan, passes(), room)
    assert "stay slow" in plan.notes[-1]
