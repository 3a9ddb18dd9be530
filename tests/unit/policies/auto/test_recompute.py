# SPDX-License-Identifier: Apache-2.0
"""Policy `auto+recompute`, compared with `auto` and with a result computed by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.plan.policy import Rewriting
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.unit.policies.recompute.toys import UNIT, layered_profile
from tests.unit.policies.tiering import tiers

BUDGET = 4 * UNIT * 201 // 200
"""Room for four tensors and the policy's margin."""


def test_a_tensor_is_computed_again_if_that_is_the_cheapest() -> None:
    # Five tensors are alive in stretch 4 (see layered_profile()), one more than the budget holds.
    # There is almost no bandwidth for moves. So without recomputation, one tensor is always slow.
    # The cheapest choice is z or g, which is written once and read once. In the slow memory of
    # tiers() (tiering.py), a write takes 0.75 ns per byte longer than in fast memory, and a read
    # 0.375 ns: together 295 us for the 64 pages of the tensor. The recomputation of y takes 10 us,
    # the time of stretch 2 (TIMES_NS in toys.py).
    profile, found = layered_profile(), tiers(0.001)
    mine, plain = (
        simulate(profile, policy(name), found, BUDGET) for name in ("auto+recompute", "auto")
    )
    assert plain.step_seconds - plain.fast_only_seconds == pytest.approx(295e-6, rel=0.05)
    assert mine.step_seconds - mine.fast_only_seconds == pytest.approx(10e-6, rel=1e-6)
    assert mine.fast_only_seconds == plain.fast_only_seconds
    assert mine.slow_only_seconds == plain.slow_only_seconds
    assert mine.peak_fast_bytes <= BUDGET
    assert any(note.startswith("1 of 2 possible recomputations") for note in mine.notes)


def test_with_room_for_everything_nothing_is_computed_again() -> None:
    profile, found, mine = layered_profile(), tiers(100.0), policy("auto+recompute")
    assert isinstance(mine, Rewriting)
    rewritten = mine.rewritten(profile, found, 6 * UNIT)
    assert rewritten.profile is profile
    plan, plain = (one.plan(profile, found, 6 * UNIT) for one in (mine, policy("auto")))
    assert plan.policy == "auto+recompute"
    for ours, others in ((plan.moves, plain.moves), (plan.layout.slots, plain.layout.slots)):
        assert np.array_equal(ours, others)
    assert replace(plan.predicted) == plain.predicted


def test_its_bound_is_below_its_step() -> None:
    profile, found, mine = layered_profile(), tiers(0.001), policy("auto+recompute")
    assert isinstance(mine, Rewriting)
    least = mine.bound_seconds(profile, found, BUDGET)
    assert profile.step_ns / 1e9 <= least
    assert least <= simulate(profile, mine, found, BUDGET).step_seconds
