# SPDX-License-Identifier: Apache-2.0
"""Capuchin's choice, checked by hand, and how it differs from G10's.

stretch    0   1   2   3   4   5   6   7
small     (x)                         (x)     16 pages, gap of six stretches; (x) is a use
large     (x)                     (x)         64 pages, gap of five
other     (x)         (x)(x)          (x)     64 pages
guest                 [x   x]                 16 pages, born in 3, dead after 4

The budget of 144 pages holds the three persistent tensors. While the guest is alive, the budget is
16 pages too small.
"""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

ROOM = 144 * PAGE


def with_guest() -> Profile:
    return lap(
        8,
        Life(16, (0, 7)),
        Life(64, (0, 6)),
        Life(64, (0, 3, 4, 7)),
        Life(16, (3, 4), (3, 4)),
    )


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    return [(int(m["tensor"]), int(m["boundary"]), int(m["tier"])) for m in plan.moves]


def test_the_most_free_time_goes_first() -> None:
    # At 64 pages a second, two transfers of the small tensor take 2 x 0.25 s of its gap of 6 s,
    # which leaves 5.5 s free. Two transfers of the large tensor take 2 x 1 s of its gap of 5 s,
    # which leaves 3 s. G10 instead compares the memory that a swap frees: 64 pages against 16.
    profile = with_guest()
    mine, other = (policy(name).plan(profile, moving(64), ROOM) for name in ("capuchin", "g10"))
    for plan in (mine, other):
        verify(plan, profile, ROOM)
        assert plan.predicted.step_ns == 8_000_000_000
    assert {tensor for tensor, _, _ in moved(mine)} == {0}
    assert {tensor for tensor, _, _ in moved(other)} == {1}


def test_out_at_once_and_back_just_in_time() -> None:
    profile = with_guest()
    plan = policy("capuchin").plan(profile, moving(64), ROOM)
    assert moved(plan) == [(0, 1, 1), (0, 6, 0)]
    assert simulate(profile, policy("capuchin"), moving(64), ROOM).step_seconds == pytest.approx(8)


def test_without_free_time_it_is_infeasible() -> None:
    # The small tensor's two transfers take 2 x 4 s, but its gap lasts only 6 s.
    with pytest.raises(SentinelError, match="infeasible as published"):
        policy("capuchin").plan(with_guest(), moving(4), ROOM)
    plan = policy("capuchin+slow").plan(with_guest(), moving(4), ROOM)
    verify(plan, with_guest(), ROOM)
    # A tensor of 16 pages with two uses stays slow, which leaves enough room for the others.
    assert plan.predicted.peak_fast_bytes <= ROOM
    assert not len(plan.moves)
