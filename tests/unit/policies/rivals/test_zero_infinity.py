# SPDX-License-Identifier: Apache-2.0
"""ZeRO-Infinity's fetches, checked by hand; roles.py has the step.

The parameter of layer k is moved out in stretch k + 1. It is moved back in stretch 12 - k, one
stretch before the backward pass uses it. After this use, the parameters of layers 2 to 4 are moved
out in stretch 14 - k, and back in stretch k - 1 of the next step. The parameter of layer 1 stays
fast between two steps, because its gap, three stretches from stretch 12 to stretch 1 of the next
step, is too short. So at most three parameters are fast.
"""

from __future__ import annotations

import pytest

from sentineld.base.errors import SentinelError
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.swaps import open_book
from sentineld.policies.rivals.zero_infinity import fetch
from sentineld.policies.rivals.zero_offload import offload, roles_of
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, moving
from tests.unit.policies.rivals.roles import PAGES, PARAMETERS, training

ROOM = 3 * PAGES * PAGE


def test_parameters_are_fetched_a_layer_ahead_and_released() -> None:
    profile = training()
    plan = policy("zero-infinity").plan(profile, moving(128), ROOM)
    verify(plan, profile, ROOM)
    moves = {(int(m["tensor"]) + 1, int(m["boundary"])): int(m["tier"]) for m in plan.moves}
    expected = {(k, k + 1): 1 for k in range(1, 5)} | {(k, 12 - k): 0 for k in range(1, 5)}
    expected |= {(k, 14 - k): 1 for k in range(2, 5)} | {(k, k - 1): 0 for k in range(2, 5)}
    assert moves == expected
    assert plan.notes[0] == (
        "tensors are swapped out in 7 gaps; parameters are fetched 1 layer ahead"
    )
    # In slow memory, the optimizer accesses its state, the gradient and three of the four
    # parameters. The gradient is also born there.
    slow_ns = (len(PARAMETERS) - 1 + 3) * PAGES * PAGE
    assert plan.predicted.step_ns == 14_000_000_000 + slow_ns
    found = simulate(profile, policy("zero-infinity"), moving(128), ROOM)
    assert found.step_seconds == pytest.approx(plan.predicted.step_ns / 1e9)


def test_it_needs_less_room_than_zero_offload() -> None:
    profile = training()
    with pytest.raises(SentinelError, match="infeasible as published: parameters and"):
        policy("zero-offload").plan(profile, moving(128), ROOM)
    with pytest.raises(SentinelError, match="infeasible as published: activations and"):
        policy("zero-infinity").plan(profile, moving(128), ROOM - PAGE)
    plan = policy("zero-infinity+slow").plan(profile, moving(128), ROOM - PAGE)
    verify(plan, profile, ROOM - PAGE)
    assert plan.predicted.fast_share < 1


@pytest.mark.parametrize(("ahead", "parameters"), [(1, 3), (2, 4)])
def test_a_longer_distance_needs_more_room(ahead: int, parameters: int) -> None:
    profile = training()
    book = open_book(profile, moving(256), ROOM)
    roles = roles_of(profile)
    offload(book, roles, 0.0)
    fetch(book, roles, ahead)
    assert int(book.usage.max()) == parameters * PAGES


def test_without_bandwidth_parameters_stay() -> None:
    profile = training()
    room = len(PARAMETERS) * PAGES * PAGE
    plan = policy("zero-infinity").plan(profile, moving(1), room)
    verify(plan, profile, room)
    assert not len(plan.moves)
