# SPDX-License-Identifier: Apache-2.0
"""Capuchin's choice by hand, and where it differs from G10's.

stretch    0   1   2   3   4   5   6   7
small     (x)                         (x)     16 pages, gap of six stretches
large     (x)                     (x)         64 pages, gap of five
other     (x)         (x)(x)          (x)     64 pages
guest                 [x   x]                 16 pages, born in 3, dead after 4

128 pages are too few by 32 while the guest is there, and 16 too few otherwise.
"""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.unit.plan.rivals.laps import PAGE, Lives, lap, moving

ROOM = 144 * PAGE


def guests() -> Profile:
    return lap(
        8,
        Lives(16, (0, 7)),
        Lives(64, (0, 6)),
        Lives(64, (0, 3, 4, 7)),
        Lives(16, (3, 4), (3, 4)),
    )


def moved(plan: Plan) -> list[tuple[int, int, int]]:
    return [(int(m["tensor"]), int(m["boundary"]), int(m["tier"])) for m in plan.moves]


def test_the_most_free_time_goes_first() -> None:
    # At 64 pages a second: the small one has 6 s less two quarters, the large one 5 s less two.
    # G10 looks at what is taken off: 64 pages against 16 while there is too much.
    profile = guests()
    mine, other = (policy(name).plan(profile, moving(64), ROOM) for name in ("capuchin", "g10"))
    for plan in (mine, other):
        verify(plan, profile, ROOM)
        assert plan.predicted.step_ns == 8_000_000_000
    assert {tensor for tensor, _, _ in moved(mine)} == {0}
    assert {tensor for tensor, _, _ in moved(other)} == {1}


def test_out_at_once_and_back_just_in_time() -> None:
    profile = guests()
    plan = policy("capuchin").plan(profile, moving(64), ROOM)
    assert moved(plan) == [(0, 1, 1), (0, 6, 0)]
    assert simulate(profile, policy("capuchin"), moving(64), ROOM).step_seconds == pytest.approx(8)


def test_without_free_time_it_is_infeasible() -> None:
    # The small one's two transfers take 8 s of its 6.
    with pytest.raises(SentinelError, match="infeasible as published"):
        policy("capuchin").plan(guests(), moving(4), ROOM)
    plan = policy("capuchin+slow").plan(guests(), moving(4), ROOM)
    verify(plan, guests(), ROOM)
    # One of 16 pages that are used twice stays slow, in cached size nothing but room.
    assert plan.predicted.peak_fast_bytes <= ROOM
    assert not len(plan.moves)
