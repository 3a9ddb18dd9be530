# SPDX-License-Identifier: Apache-2.0
"""The figures, limits and access tables of emulated tiers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.host.presets import preset_tiers
from sentineld.machine.choose import substrate_of
from sentineld.machine.emulated import EmulatedSubstrate
from tests.unit.plan.toys import toy_plan, toy_profile, two_tiers


def emulated(**figures: float | int | str) -> EmulatedSubstrate:
    return EmulatedSubstrate(replace(TierOverrides(emulated="cxl"), **figures))


def test_preset_figures_are_scaled_by_threads() -> None:
    found, preset = emulated(emulated_threads=3).tiers(), preset_tiers("cxl", 3)
    assert found.source == "emulated:cxl"
    assert found.migration_bytes_per_s == preset.migration_bytes_per_s
    for tier, whole in zip(found.tiers, preset.tiers, strict=True):
        assert tier.capacity_bytes > 0
        assert replace(tier, capacity_bytes=0) == whole


def test_configured_figures_replace_the_presets() -> None:
    found = emulated(slow_read_bytes_per_s=5e8, migration_bytes_per_s=7e8).tiers()
    assert found.tiers[1].read_bytes_per_s == 5e8
    assert found.tiers[1].write_bytes_per_s == preset_tiers("cxl", 1).tiers[1].write_bytes_per_s
    assert found.migration_bytes_per_s == 7e8


def test_the_cost_of_births_is_measured_or_configured() -> None:
    assert emulated().tiers().birth_ns_per_byte > 0.0
    assert emulated(birth_ns_per_byte=7.5).tiers().birth_ns_per_byte == 7.5


@pytest.mark.parametrize(
    "figures",
    [
        {"emulated": "cxxl"},
        {"emulated": "nvme"},
        {"emulated_threads": 0},
        {"fast": (0,)},
        {"slow": (1,)},
    ],
)
def test_an_invalid_tiers_table_is_refused(figures: dict[str, float]) -> None:
    with pytest.raises(SentinelError) as caught:
        emulated(**figures)
    assert caught.value.code == "bad-config"
    assert caught.value.hint


def test_emulated_fast_memory_is_limited_to_the_budget_except_for_fast_only() -> None:
    plan = replace(toy_plan(), budget_bytes=10 * 4096)
    fast_only = replace(plan, policy="fast-only", layout=replace(plan.layout, heap_tier=0))
    first_touch = replace(plan, policy="first-touch", layout=replace(plan.layout, heap_tier=None))
    assert emulated().fast_pages(replace(plan, policy="sentinel"), 0, 4096) == 10
    assert emulated().fast_pages(first_touch, 0, 4096) == 10
    assert emulated().fast_pages(fast_only, 0, 4096) is None
    assert substrate_of(Config()).fast_pages(first_touch, 0, 4096) is None


def test_only_emulated_tiers_send_accesses_to_the_shim() -> None:
    layout, profile = toy_plan().layout, toy_profile()
    assert substrate_of(Config()).accesses(layout, profile, two_tiers()) is None
    sent = emulated().accesses(layout, profile, two_tiers())
    assert sent is not None
    assert len(sent) == len(profile.accesses)
    nothing = emulated().accesses(layout, None, two_tiers())
    assert nothing is not None
    assert len(nothing) == 0
