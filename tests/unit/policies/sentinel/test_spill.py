# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel+spill` on toy and training steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.plan import SLOT_DROP
from sentineld.model.profile import Kind, Profile
from sentineld.plan.check import verify
from sentineld.plan.cuts import choose_cuts
from sentineld.policies.bounds.fast_share import fast_share_bound
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers
from tests.unit.trainer import MIB
from tests.unit.workloads import Network, profiled

NETWORK = Network(blocks=8, weight_bytes=MIB // 2, activation_bytes=MIB, bytes_per_s=120e6)
RATE = 150e6 / 2


@pytest.fixture(scope="module")
def training() -> Profile:
    """A step of 8 blocks with forward, backward and an optimizer with two states per parameter. Its
    peak is 64.5 MiB."""
    profile, step = profiled(NETWORK)
    cuts = choose_cuts(step, profile.peak_bytes // 5)
    return profiled(NETWORK, tuple(cuts.tolist()))[0]


def test_with_room_for_all_of_the_toy_nothing_moves() -> None:
    # Of 13 pages, 12 remain after the policy's margin. The tensors need 11: activation 2,
    # scratch 1, gradient 2, state 4, parameter 2.
    plan = policy("sentinel+spill").plan(toy_profile(), two_tiers(), 13 * PAGE)
    verify(plan, toy_profile(), 13 * PAGE)
    assert plan.predicted.fast_share == 1.0
    assert not len(plan.moves)


def test_with_half_the_room_the_costliest_tensors_of_the_toy_are_fast() -> None:
    # 7 pages remain after the policy's margin. The pool holds the scratch and takes 1 page in all
    # stretches. The other fast pages are:
    # stretch      0     1     2     3
    # activation   2     2     2           born fast, used in 0 and 2
    # gradient     2           2     2     born fast in 2, dies in 0; used in 2 and 3
    # parameter    2     2     2     2     used in 1, 2 and 3
    # The scratch and these pages serve 1 + 4 + 4 + 6 = 15 of 19 page accesses. The state's 4 pages
    # would have to be promoted in stretch 2 for their use in 3, but stretch 2 has no room for them.
    plan = policy("sentinel+spill").plan(toy_profile(), two_tiers(), 8 * PAGE)
    verify(plan, toy_profile(), 8 * PAGE)
    assert plan.predicted.fast_share == pytest.approx(15 / 19)
    assert plan.predicted.peak_fast_bytes == 7 * PAGE
    assert plan.initial_tier.tolist() == [255, 255, 255, 1, 0]


@pytest.mark.parametrize("share", [0.15, 0.2, 0.3, 0.5])
def test_plans_keep_to_the_budget_and_are_near_the_bound(training: Profile, share: float) -> None:
    budget = int(training.peak_bytes * share)
    plan = policy("sentinel+spill").plan(training, two_tiers(RATE), budget)
    verify(plan, training, budget)
    bound = fast_share_bound(training, budget, RATE)
    assert bound.fixed_share - 0.02 <= bound.fast_share
    assert 0.9 * bound.fast_share <= plan.predicted.fast_share <= bound.fast_share + 1e-9
    step_s = training.stretches["time_ns"].sum() / 1e9
    moved = plan.predicted.promoted_bytes + plan.predicted.demoted_bytes
    assert moved <= 0.85 * step_s * RATE


def test_a_fifth_of_the_peak_serves_nine_accesses_in_ten(training: Profile) -> None:
    budget = training.peak_bytes // 5
    plan = policy("sentinel+spill").plan(training, two_tiers(RATE), budget)
    first_touch = policy("first-touch").plan(training, two_tiers(RATE), budget)
    assert plan.predicted.fast_share >= 0.9
    assert first_touch.predicted.fast_share < 0.6
    assert fast_share_bound(training, budget, RATE).fixed_share < 0.9


def test_more_bandwidth_serves_more(training: Profile) -> None:
    budget = training.peak_bytes // 5
    shares = [
        policy("sentinel+spill").plan(training, two_tiers(rate), budget).predicted.fast_share
        for rate in (RATE / 8, RATE / 2, 2 * RATE)
    ]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.1


def test_same_profile_same_plan(training: Profile) -> None:
    budget = training.peak_bytes // 5
    one, other = (
        policy("sentinel+spill").plan(training, two_tiers(RATE), budget) for _ in range(2)
    )
    assert np.array_equal(one.moves, other.moves)
    assert np.array_equal(one.layout.slots, other.layout.slots)
    assert one.predicted == other.predicted


def test_layout_follows_the_paper(training: Profile) -> None:
    budget = training.peak_bytes // 5
    plan = policy("sentinel+spill").plan(training, two_tiers(RATE), budget)
    regions = {region.name: region for region in plan.layout.regions}
    slots, tensors = plan.layout.slots, training.tensors
    pool = regions["pool"]
    pooled = (slots["offset"] >= pool.offset) & (slots["offset"] < pool.offset + pool.bytes)
    # Short-lived tensors and long-lived ones share no page, and the pool is never moved.
    assert not np.any(slots["flags"][pooled] & SLOT_DROP)
    in_arena = plan.moves[plan.moves["space"] == 0]
    assert np.all(in_arena["offset"] >= pool.offset + pool.bytes)
    scratch = tensors["slot"][tensors["kind"] == Kind.SCRATCH]
    assert np.all(pooled[scratch])
    # Everything outside the pool that is born fast is dropped at its death.
    fast = regions["fast-born"]
    born_fast = (slots["offset"] >= fast.offset) & (slots["offset"] < fast.offset + fast.bytes)
    assert np.all(slots["flags"][born_fast] & SLOT_DROP)


def test_missing_inputs_are_refused() -> None:
    profile = toy_profile()
    empty = replace(profile, accesses=profile.accesses[:0])
    with pytest.raises(SentinelError, match="no accesses"):
        policy("sentinel+spill").plan(empty, two_tiers(), 8 * PAGE)
    with pytest.raises(SentinelError, match="bandwidth"):
        policy("sentinel+spill").plan(profile, two_tiers(0.0), 8 * PAGE)
    tiers = two_tiers()
    with pytest.raises(SentinelError) as error:
        policy("sentinel+spill").plan(profile, replace(tiers, tiers=tiers.tiers[:1]), 8 * PAGE)
    assert error.value.code == "no-second-tier"


@settings(max_examples=15)
@given(
    st.integers(1, 3),
    st.integers(1, 24),
    st.integers(1, 24),
    st.floats(0.1, 0.9),
    st.integers(5, 9),
)
def test_any_training_step_gets_a_sound_plan(
    blocks: int, weight_pages: int, activation_pages: int, share: float, rate: int
) -> None:
    network = Network(
        blocks=blocks,
        weight_bytes=weight_pages * PAGE,
        activation_bytes=activation_pages * PAGE,
    )
    profile, _ = profiled(network)
    budget = int(profile.peak_bytes * share)
    plan = policy("sentinel+spill").plan(profile, two_tiers(10.0**rate), budget)
    verify(plan, profile, budget)
    assert (
        plan.predicted.fast_share <= fast_share_bound(profile, budget, 10.0**rate).fast_share + 1e-9
    )


def test_tensors_that_exceed_the_pool_spill(training: Profile) -> None:
    peak = training.peak_bytes
    for budget in (PAGE, 64 * PAGE, peak // 40, peak // 20):
        plan = policy("sentinel+spill").plan(training, two_tiers(RATE), budget)
        verify(plan, training, budget)
        assert plan.policy == "sentinel+spill"
        assert plan.predicted.peak_fast_bytes <= budget
    static = policy("static").plan(training, two_tiers(RATE), peak // 20)
    assert plan.predicted.fast_share > static.predicted.fast_share - 0.05
