# SPDX-License-Identifier: Apache-2.0
"""G10's choice, checked by hand: three persistent tensors and a transient guest, of 64 pages each.

stretch    0   1   2   3   4   5
first     (x)                 (x)     (x) is a use
second    (x)         (x)
third             (x)(x)
guest             [x   x]             born in 2, dead after 3

There is room for three tensors, but four are alive in stretches 2 and 3. Only the first tensor has
a gap that spans both stretches: it is demoted in stretch 1 and promoted in stretch 4.
"""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.guests import with_guest
from tests.unit.policies.rivals.laps import PAGE, Life, lap, moving

BUDGET = 3 * 64 * PAGE
SLOW_S = 64 * PAGE / 1e9
"""Cost of one use of a slow tensor."""


def test_the_gap_with_the_most_pressure_goes_out_and_comes_back() -> None:
    profile = with_guest()
    plan = policy("g10").plan(profile, moving(64), BUDGET)
    verify(plan, profile, BUDGET)
    moves = [
        tuple(int(move[name]) for name in ("boundary", "deadline", "tensor", "tier", "bytes"))
        for move in plan.moves
    ]
    assert moves == [(1, 2, 0, 1, 64 * PAGE), (4, 5, 0, 0, 64 * PAGE)]
    assert plan.predicted.step_ns == 6_000_000_000
    assert simulate(profile, policy("g10"), moving(64), BUDGET).step_seconds == pytest.approx(6.0)


def test_too_little_bandwidth_is_infeasible() -> None:
    with pytest.raises(SentinelError, match="infeasible as published"):
        policy("g10").plan(with_guest(), moving(20), BUDGET)
    # Under g10+slow, tensors can also be accessed in slow memory. One tensor stays there. All
    # tensors have the same size and the same costs, so the policy chooses the first one.
    plan = policy("g10+slow").plan(with_guest(), moving(20), BUDGET)
    verify(plan, with_guest(), BUDGET)
    assert plan.predicted.step_ns == pytest.approx(1e9 * (6 + 2 * SLOW_S), abs=2)
    assert plan.initial_tier.tolist() == [1, 0, 0, 255]


def test_with_room_for_all_nothing_moves() -> None:
    plan = policy("g10").plan(with_guest(), moving(64), 4 * 64 * PAGE)
    assert not len(plan.moves)
    assert plan.predicted.step_ns == 6_000_000_000


def test_tensors_come_back_earlier_where_there_is_room() -> None:
    # A promotion in stretch 5 would be just in time for the use in stretch 6. But the guest's room
    # is already free in stretch 4, so the promotion begins there.
    profile = lap(7, Life(64, (0, 6)), Life(64, (0, 3)), Life(64, (2, 3)), Life(64, (2, 3), (2, 3)))
    plan = policy("g10").plan(profile, moving(64), BUDGET)
    verify(plan, profile, BUDGET)
    assert [int(move["boundary"]) for move in plan.moves] == [1, 4]


def test_short_lived_tensors_that_do_not_fit() -> None:
    # Tensors of 64 and 16 pages live in stretch 1 only. Together they need 80 pages,
    # but the budget has 72.
    profile = lap(3, Life(64, (1,), (1, 1)), Life(16, (1,), (1, 1)), Life(32, (0, 2)))
    with pytest.raises(SentinelError, match=r"as published: short-lived tensors .* 320.0 KiB"):
        policy("g10").plan(profile, moving(64), 72 * PAGE)
    plan = policy("g10+slow").plan(profile, moving(64), 72 * PAGE)
    verify(plan, profile, 72 * PAGE)
    regions = {region.name: region.bytes // PAGE for region in plan.layout.regions}
    assert regions == {"short-lived": 16, "slow-born": 64}
    assert plan.predicted.step_ns == pytest.approx(1e9 * (3 + SLOW_S), abs=2)
