# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel`, and the properties that it shares with `sentinel+spill`, on toy and training
steps."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentineld.base.errors import SentinelError
from sentineld.model.plan import SLOT_DROP
from sentineld.model.profile import Kind, Profile
from sentineld.plan.check import verify
from sentineld.plan.layers import short_lived
from sentineld.plan.layout import area_offsets
from sentineld.policies.bounds.fast_share import fast_share_bound
from sentineld.policies.registry import policy
from sentineld.policies.shares import MOVE_SHARE, usable_pages
from tests.conftest import examples
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers
from tests.unit.policies.network import RATE, step_bound, step_plan, training_step
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.workloads import Network, profiled

BOTH = pytest.mark.parametrize("name", ["sentinel", "sentinel+spill"])
NOTE = re.compile(
    r"migration interval: (\d+) stretches \(lengths tried: (\d+)\).*"
    r"space constraint (met|not met), time constraint (met|not met)\)"
)


@BOTH
def test_with_room_for_all_of_the_toy_nothing_moves(name: str) -> None:
    # The tensors need 11 pages: activation 2, scratch 1, gradient 2, state 4, parameter 2.
    plan = policy(name).plan(toy_profile(), two_tiers(), 13 * PAGE)
    verify(plan, toy_profile(), 13 * PAGE)
    assert plan.predicted.fast_share == 1.0
    assert not len(plan.moves)


def test_what_has_no_room_stays_slow() -> None:
    # The pool holds the scratch and takes 1 of the 8 pages in all stretches. The other fast pages
    # go to births first, then to the parameter, which is accessed more often than the state:
    # stretch      0     1     2     3
    # activation   2     2     2           born fast, used in 0 and 2
    # gradient     2           2     2     born fast in 2, dies in 0; used in 2 and 3
    # parameter    2     2     2     2     used in 1, 2 and 3
    # state        -     -     -     -     4 pages, used in 3
    # The scratch and these pages serve 1 + 4 + 4 + 6 = 15 of 19 page accesses.
    plan = policy("sentinel").plan(toy_profile(), two_tiers(), 8 * PAGE)
    verify(plan, toy_profile(), 8 * PAGE)
    assert plan.predicted.fast_share == pytest.approx(15 / 19)
    assert plan.initial_tier.tolist() == [255, 255, 255, 1, 0]
    assert "space constraint not met" in plan.notes[1]
    assert plan.notes[2].endswith("promotions left: 1 for lack of room, 0 for lack of time")


@BOTH
@pytest.mark.parametrize("share", [0.15, 0.2, 0.3, 0.5])
def test_plans_keep_to_the_budget_and_are_near_the_bound(name: str, share: float) -> None:
    training = training_step()
    budget = int(training.peak_bytes * share)
    plan = step_plan(name, share)
    verify(plan, training, budget)
    bound = step_bound(share)
    assert 0.9 * bound.fast_share <= plan.predicted.fast_share <= bound.fast_share + 1e-9
    step_s = training.stretches["time_ns"].sum() / 1e9
    moved = plan.predicted.promoted_bytes + plan.predicted.demoted_bytes
    assert moved <= MOVE_SHARE * step_s * RATE


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_where_the_constraints_can_be_met_all_accesses_are_fast(share: float) -> None:
    # The purpose of the Sentinel paper's two constraints on the interval length is that all
    # accesses are fast.
    plan = step_plan("sentinel", share, 2 * RATE)
    found = NOTE.match(plan.notes[1])
    assert found is not None
    assert found[3] == found[4] == "met"
    assert plan.predicted.fast_share == pytest.approx(1.0, abs=0.001)
    assert len(plan.moves)


@BOTH
def test_more_bandwidth_serves_more(name: str) -> None:
    plans = [step_plan(name, rate=rate) for rate in (RATE / 8, RATE / 2, 2 * RATE)]
    shares = [plan.predicted.fast_share for plan in plans]
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.1


@BOTH
def test_same_profile_same_plan(name: str) -> None:
    training = training_step()
    one = step_plan(name)
    other = policy(name).plan(training, two_tiers(RATE), one.budget_bytes)
    assert np.array_equal(one.moves, other.moves)
    assert np.array_equal(one.layout.slots, other.layout.slots)
    assert one.predicted == other.predicted


@BOTH
def test_layout_follows_the_paper(name: str) -> None:
    training, plan = training_step(), step_plan(name)
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


def test_short_lived_tensors_beyond_the_budget_are_infeasible() -> None:
    with pytest.raises(SentinelError, match="infeasible as published") as error:
        policy("sentinel").plan(training_step(), two_tiers(RATE), 64 * PAGE)
    assert "sentinel+spill" in (error.value.hint or "")


def two_lives_in_one_stretch() -> Profile:
    """Two tensors of 4 pages. In stretch 1, B is born, A of the previous step dies, and A of this
    step is born, in this order. (4) is an access to 4 pages.

    stretch      0        1                              2          3
    B                     [born (4)                      (4) dies]
    A            (4) ...            dies] [born (4)      .........  wraps
    """
    profile = lap(4, Life(4, (1, 2), (1, 2)), Life(4, (0, 1), (1, 3)))
    tensors, stretches = profile.tensors.copy(), profile.stretches.copy()
    tensors["birth_event"], tensors["death_event"] = [0, 2], [3, 1]
    tensors["death_stretch"], tensors["wraps"] = [2, 1], [False, True]
    stretches["event"], stretches["cursor"] = [0, 0, 3, 4], [0, 0, 2, 2]
    return replace(profile, tensors=tensors, stretches=stretches)


@BOTH
@pytest.mark.parametrize("pages", range(4, 10))
def test_a_tensor_with_two_lives_in_one_stretch_stays_slow(name: str, pages: int) -> None:
    profile = two_lives_in_one_stretch()
    plan = policy(name).plan(profile, two_tiers(), pages * PAGE)
    verify(plan, profile, pages * PAGE)


@BOTH
def test_missing_inputs_are_refused(name: str) -> None:
    profile = toy_profile()
    empty = replace(profile, accesses=profile.accesses[:0])
    with pytest.raises(SentinelError, match="no accesses"):
        policy(name).plan(empty, two_tiers(), 8 * PAGE)
    with pytest.raises(SentinelError, match="bandwidth"):
        policy(name).plan(profile, two_tiers(0.0), 8 * PAGE)
    tiers = two_tiers()
    with pytest.raises(SentinelError) as error:
        policy(name).plan(profile, replace(tiers, tiers=tiers.tiers[:1]), 8 * PAGE)
    assert error.value.code == "no-second-tier"


@BOTH
@settings(max_examples=examples(ci=8, long=200))
@given(
    blocks=st.integers(1, 3),
    weight_pages=st.integers(1, 24),
    activation_pages=st.integers(1, 24),
    share=st.floats(0.1, 0.9),
    rate=st.integers(5, 9),
)
def test_any_training_step_gets_a_sound_plan(
    name: str, blocks: int, weight_pages: int, activation_pages: int, share: float, rate: int
) -> None:
    network = Network.of_pages(blocks, weight_pages, activation_pages)
    profile, _ = profiled(network)
    budget = int(profile.peak_bytes * share)
    short = np.flatnonzero(short_lived(profile))
    pool_pages = area_offsets(profile, short, grouped=False)[1]
    if name == "sentinel" and usable_pages(budget, PAGE) < pool_pages:
        with pytest.raises(SentinelError, match="infeasible as published"):
            policy(name).plan(profile, two_tiers(10.0**rate), budget)
        return
    plan = policy(name).plan(profile, two_tiers(10.0**rate), budget)
    verify(plan, profile, budget)
    bound = fast_share_bound(profile, budget, 10.0**rate)
    assert plan.predicted.fast_share <= bound.fast_share + 1e-9
