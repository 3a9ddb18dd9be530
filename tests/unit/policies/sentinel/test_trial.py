# SPDX-License-Identifier: Apache-2.0
"""The variant of a plan in which boundaries wait for promotions."""

from __future__ import annotations

from pathlib import Path

from sentineld.plan.check import verify
from sentineld.plan.store import load_plan, save_plan
from sentineld.policies.registry import policy
from sentineld.policies.sentinel.trial import stalling
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers


def test_the_boundary_of_a_deadline_waits_for_the_one_before() -> None:
    plan = toy_plan()
    up = plan.moves[plan.moves["tier"] == 0]
    assert up["deadline"].tolist() == [3]
    assert stalling(plan).layout.waits.tolist() == [*plan.layout.waits.tolist()[:3], 2]
    assert stalling(plan).stalls_for_promotions
    assert not plan.stalls_for_promotions


def test_at_the_step_s_begin_it_is_the_last_boundary_of_the_step_before() -> None:
    plan = toy_plan()
    plan.moves["deadline"][plan.moves["tier"] == 0] = 0
    assert stalling(plan).layout.waits[0] == 3


def test_the_variant_is_valid_and_can_be_stored(tmp_path: Path) -> None:
    profile = toy_profile()
    plan = policy("sentinel").plan(profile, two_tiers(), 9 * PAGE)
    for one in (stalling(plan), stalling(toy_plan())):
        verify(one, profile, 9 * PAGE)
        save_plan(tmp_path / "it.npz", one, profile)
        assert load_plan(tmp_path / "it.npz")[0].stalls_for_promotions
