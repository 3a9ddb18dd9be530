# SPDX-License-Identifier: Apache-2.0
"""FlashNeuron's choice, checked by hand, and how it differs from G10's and Capuchin's.

stretch      0   1   2   3   4   5   6   7   8   9
             step|-- forward ---|------ backward ----|
parameter   (x)                                 (x)     64 pages, (x) is a use
first           [x                           x]         16 pages, saved: gap of six stretches
second              [x                   x]             64 pages, saved: gap of four
gradient                        [x  x]                  16 pages

The budget of 144 pages holds the parameter and the two saved tensors. While the gradient is alive,
in stretches 4 and 5, the budget is 16 pages too small.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.flashneuron import relieve
from sentineld.policies.rivals.passes import saved
from sentineld.policies.rivals.swaps import open_book
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

ROOM = 144 * PAGE


def in_passes(profile: Profile, backward_from: int) -> Profile:
    stretches = profile.stretches.copy()
    stretches["kind"][backward_from:] = Boundary.BACKWARD
    return replace(profile, stretches=stretches)


def training() -> Profile:
    profile = lap(
        10,
        Life(64, (0, 8)),
        Life(16, (1, 8), (1, 8)),
        Life(64, (2, 7), (2, 7)),
        Life(16, (4, 5), (4, 5)),
    )
    return in_passes(profile, backward_from=4)


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    return [(int(m["tensor"]), int(m["boundary"]), int(m["tier"])) for m in plan.moves]


def test_tensors_leave_in_the_order_of_generation() -> None:
    # A swap of the first saved tensor covers the deficit of 16 pages. The tensor leaves after its
    # use in stretch 1. It returns in stretch 6, as soon as the gradient's death has made room; its
    # next use is in stretch 8. G10 chooses the parameter, because a swap of the parameter makes
    # more room.
    profile = training()
    plan = policy("flashneuron").plan(profile, moving(64), ROOM)
    verify(plan, profile, ROOM)
    assert moved(plan) == [(1, 2, 1), (1, 6, 0)]
    assert plan.predicted.step_ns == 10_000_000_000
    found = simulate(profile, policy("flashneuron"), moving(64), ROOM)
    assert found.step_seconds == pytest.approx(10)
    other = policy("g10").plan(profile, moving(64), ROOM)
    assert {tensor for tensor, _, _ in moved(other)} == {0}


@pytest.mark.parametrize(("first", "late"), [(16, []), (64, [5])])
def test_a_tensor_makes_room_when_the_queue_before_it_has_been_transferred(
    first: int, late: list[int]
) -> None:
    # The gradient lives in stretches 5 and 6. There is room for the gradient only once the second
    # saved tensor has left, and this tensor leaves after the first one. At 32 pages a second, a
    # first tensor of 16 pages leaves in stretch 2. The second tensor leaves in stretches 3 and 4,
    # just in time. A first tensor of 64 pages leaves in stretches 2 and 3, so half of the second
    # tensor leaves only in stretch 5, too late for the gradient's birth.
    profile = in_passes(
        lap(
            16,
            Life(64, (0, 15)),
            Life(first, (1, 14), (1, 14)),
            Life(64, (2, 13), (2, 13)),
            Life(first + 48, (5, 6), (5, 6)),
        ),
        backward_from=5,
    )
    book = open_book(profile, moving(32), (64 + first + 64) * PAGE)
    relieve(book, 0)
    assert [swap.gap.tensor for swap in book.swaps] == [1, 2]
    assert book.over.nonzero()[0].tolist() == late


def test_small_tensors_stay() -> None:
    profile = training()
    book = open_book(profile, moving(64), ROOM)
    relieve(book, 64 * PAGE)
    assert [swap.gap.tensor for swap in book.swaps] == [2]
    book = open_book(profile, moving(64), ROOM)
    relieve(book, 64 * PAGE + 1)
    assert book.swaps == []


def test_parameters_stay() -> None:
    # The parameter never leaves. It and the gradient together need 80 pages.
    profile = training()
    assert [gap.tensor for gap in saved(open_book(profile, moving(64), ROOM))] == [1, 2]
    with pytest.raises(SentinelError, match="infeasible as published: offloading all saved"):
        policy("flashneuron").plan(profile, moving(64), 78 * PAGE)
    plan = policy("flashneuron+slow").plan(profile, moving(64), 78 * PAGE)
    verify(plan, profile, 78 * PAGE)
    assert any("stay slow" in note for note in plan.notes)
