# SPDX-License-Identifier: Apache-2.0
"""Predictions of a steady step under a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.host.presets import preset_tiers
from sentineld.plan.predict import initial_tiers, predicted
from sentineld.policies.registry import policy
from tests.unit.plan.toys import large_profile, toy_plan, toy_profile


def test_on_two_tiers_alike_every_placement_takes_the_all_fast_time() -> None:
    profile = large_profile()
    for name in ("fast-only", "slow-only"):
        plan = policy(name).plan(profile, preset_tiers("dram", 1), 0)
        assert predicted(plan, profile, preset_tiers("dram", 1)).step_ns == 4_000_000_000


def test_slow_memory_adds_the_cost_of_every_access() -> None:
    profile, cxl = large_profile(), preset_tiers("cxl", 12)
    plan = policy("slow-only").plan(profile, cxl, 0)
    rows = profile.accesses
    extra = rows["bytes_read"] * (1 / 24 - 1 / 105) + rows["bytes_written"] * (1 / 20 - 1 / 105)
    step_ns = predicted(plan, profile, cxl).step_ns
    assert step_ns == pytest.approx(4e9 + float(extra.sum()), abs=1)


def test_initial_tier_is_that_of_most_pages() -> None:
    plan, profile = toy_plan(), toy_profile()
    assert initial_tiers(plan, profile).tolist()[:3] == [255, 255, 255]
    moved = plan.initial.copy()
    moved["bytes"][0] = 4096
    moved["offset"][1], moved["bytes"][1] = 4096, 3 * 4096
    assert initial_tiers(replace(plan, initial=moved), profile).tolist()[3:] == [1, 0]
