# SPDX-License-Identifier: Apache-2.0
"""LMS's threshold and lower bound, checked by hand.

passes.py defines the step: a forward and a backward pass over six layers. The second use of the
input of layer k is 13 - 2 k layers after the first one: 9, 7 and 5 layers for layers 2, 3 and 4.
The gaps of the inputs of layers 5 and 6 are too short for a swap. The input of layer 1 is no
tensor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.lms import distance, relieve, swap_in_at
from sentineld.policies.rivals.swaps import Gap, open_book
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving
from tests.unit.policies.rivals.passes import PAGES, passes

ROOM = 3 * PAGES * PAGE
"""Room for three inputs. In stretch 6, five inputs are alive, so two have to be swapped out."""


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    """(layer whose input moves, boundary, tier) of each move."""
    return [(int(m["tensor"]) + 2, int(m["boundary"]), int(m["tier"])) for m in plan.moves]


@pytest.mark.parametrize(
    ("inputs", "threshold", "swapped"), [(5, 9, set()), (4, 8, {2}), (3, 6, {2, 3})]
)
def test_the_threshold_is_the_largest_that_suffices(
    inputs: int, threshold: int, swapped: set[int]
) -> None:
    room = inputs * PAGES * PAGE
    book = open_book(passes(), moving(64), room)
    assert relieve(book, 1) == threshold
    assert {swap.gap.tensor + 2 for swap in book.swaps} == swapped
    assert not book.over.any()


def test_swaps_begin_after_the_first_use_and_a_layer_before_the_second_one() -> None:
    # LMS begins with the inputs whose two uses are furthest apart. If the inputs of layers 2 and 3
    # are swapped out, at most three inputs are fast. With a lower bound of 1, each of these two
    # inputs returns in the layer before its second use.
    plan = policy("lms").plan(passes(), moving(64), ROOM)
    verify(plan, passes(), ROOM)
    assert moved(plan) == [(2, 3, 1), (3, 4, 1), (3, 9, 0), (2, 10, 0)]
    assert plan.notes[0] == (
        "tensors are swapped out in 2 gaps; threshold 6, lower bound 1 (layers)"
    )
    assert simulate(passes(), policy("lms"), moving(64), ROOM).step_seconds == pytest.approx(14)


def with_cuts(profile: Profile, *cuts: int) -> Profile:
    """The profile, changed so that each of these boundaries is a cut within a layer."""
    stretches = profile.stretches.copy()
    stretches["kind"][list(cuts)] = Boundary.CUT
    return replace(profile, stretches=stretches)


def test_distances_are_counted_in_layers() -> None:
    profile = with_cuts(lap(10, Life(16, (0, 9))), 3, 4, 7)
    book = open_book(profile, moving(64), ROOM)
    gap = Gap(0, 0, 9)
    # After stretch 0, layers begin in stretches 1, 2, 5, 6, 8 and 9.
    assert distance(book, gap) == 6
    assert [swap_in_at(book, gap, bound) for bound in (1, 2, 3, 5, 20)] == [8, 6, 5, 1, 1]
    # The distance of a gap within one layer is 0.
    assert distance(book, Gap(0, 2, 4)) == 0
    assert swap_in_at(book, Gap(0, 2, 4), 1) == 4


def test_a_larger_lower_bound_needs_more_room() -> None:
    peaks = []
    for bound in (1, 2):
        # There is no room for an input, so tensors are swapped out in all three gaps.
        book = open_book(passes(), moving(64), PAGE)
        assert relieve(book, bound) == 4
        assert len(book.swaps) == 3
        peaks.append(book.usage[7:11].tolist())
    # The inputs of layers 4, 3 and 2 are used again in stretches 9, 10 and 11. The lower bound is
    # the number of layers by which each input returns before its second use. So with a lower bound
    # of 2, one more input is fast in stretches 7, 8 and 9.
    early, earliest = (np.array(peak) // PAGES for peak in peaks)
    assert early.tolist() == [2, 2, 2, 2]
    assert earliest.tolist() == [3, 3, 3, 2]


def test_variables_are_not_swapped() -> None:
    profile = lap(8, Life(PAGES, (0, 7)), Life(PAGES, (3, 4), (3, 4)))
    with pytest.raises(SentinelError, match="infeasible as published: swapping"):
        policy("lms").plan(profile, moving(64), PAGES * PAGE)
    # The persistent tensor stands for a TensorFlow variable, which LMS never swaps out. G10 swaps
    # this tensor out while the other tensor is alive.
    verify(policy("g10").plan(profile, moving(64), PAGES * PAGE), profile, PAGES * PAGE)
    plan = policy("lms+slow").plan(profile, moving(64), PAGES * PAGE)
    verify(plan, profile, PAGES * PAGE)
    assert not len(plan.moves)
    assert plan.notes[0].startswith("tensors are swapped out in 0 gaps; threshold 0,")
