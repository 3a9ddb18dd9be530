# SPDX-License-Identifier: Apache-2.0
"""ZeRO-Offload's roles, checked by hand; roles.py has the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.model.profile import Kind
from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from sentineld.policies.rivals.swaps import open_book
from sentineld.policies.rivals.zero_offload import offload, roles_of
from sentineld.simulate.simulate import simulate
from tests.unit.policies.rivals.laps import PAGE, moving
from tests.unit.policies.rivals.roles import GRADIENT, PAGES, PARAMETERS, STATE, training

ROOM = len(PARAMETERS) * PAGES * PAGE
"""Room for the parameters only."""


def test_roles_follow_from_the_pass_that_uses_a_tensor() -> None:
    profile = training()
    roles = roles_of(profile)
    assert np.flatnonzero(roles.parameter).tolist() == list(PARAMETERS)
    assert np.flatnonzero(roles.gradient).tolist() == [GRADIENT]
    assert np.flatnonzero(roles.state).tolist() == list(STATE)
    assert set(profile.accesses["stretch"][roles.in_optimizer].tolist()) == {13}


def test_gradients_and_state_are_slow_and_nothing_moves() -> None:
    profile = training()
    plan = policy("zero-offload").plan(profile, moving(64), ROOM)
    verify(plan, profile, ROOM)
    assert not len(plan.moves)
    assert plan.initial_tier.tolist() == [0, 0, 0, 0, 255, 1, 1, 1, 1]
    assert [(region.name, region.tier) for region in plan.layout.regions] == [("slow-born", 1)]
    # Slow accesses: the gradient's birth, and the optimizer's reads of the gradient and the state.
    # A slow byte takes 1 ns longer.
    assert plan.predicted.step_ns == 14_000_000_000 + 3 * PAGES * PAGE
    found = simulate(profile, policy("zero-offload"), moving(64), ROOM)
    assert found.step_seconds == pytest.approx(plan.predicted.step_ns / 1e9)


@pytest.mark.parametrize(
    ("share", "fast"), [(0.0, []), (0.24, []), (0.5, [5, 6]), (0.8, [5, 6, 7])]
)
def test_twin_flow_keeps_the_first_tensors_of_each_role_fast(share: float, fast: list[int]) -> None:
    profile = training()
    book = open_book(profile, moving(64), 8 * PAGES * PAGE)
    offload(book, roles_of(profile), share)
    assert np.flatnonzero(~book.slow).tolist() == [*PARAMETERS, *fast]


def test_twin_flow_is_used_where_it_fits() -> None:
    profile = training()
    for state, share in ((0, "0%"), (1, "40%"), (2, "60%"), (3, "80%"), (9, "80%")):
        room = ROOM + state * PAGES * PAGE // 4
        plan = policy("zero-offload").plan(profile, moving(64), room)
        verify(plan, profile, room)
        assert plan.notes[0].endswith(f"slow, except for {share} of each")


def test_parameters_and_activations_stay_fast() -> None:
    profile = training()
    with pytest.raises(SentinelError, match="infeasible as published: parameters and activations"):
        policy("zero-offload").plan(profile, moving(64), ROOM - PAGE)
    plan = policy("zero-offload+slow").plan(profile, moving(64), ROOM - PAGE)
    verify(plan, profile, ROOM - PAGE)
    assert plan.initial_tier.tolist()[:4].count(1) == 1
    # As an activation, the gradient has to be fast, too, but ROOM is for the parameters only.
    tensors = profile.tensors.copy()
    tensors["kind"][GRADIENT] = Kind.ACTIVATION
    with pytest.raises(SentinelError, match="infeasible as published"):
        policy("zero-offload").plan(replace(profile, tensors=tensors), moving(64), ROOM)
