# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of the machine it runs on."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import Config, TierOverrides
from sentineld.machine import machine
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine, default_policy
from sentineld.machine.swapped import PAGE_OUT_BYTES_PER_S
from sentineld.observe.module import MODULE
from sentineld.observe.shim_link import ShimLink
from tests.unit.plan.toys import two_tiers

NO_MODULE = SentinelError("module-not-loaded", "no module here")


@pytest.mark.parametrize(
    ("preset", "setting", "wanted"),
    [
        ("cxl", "auto", True),
        ("cxl", "on", True),
        ("cxl", "off", False),
        ("", "auto", False),
        ("", "on", True),
        ("", "off", False),
    ],
)
def test_huge_pages_are_used_unless_the_module_samples_small_pages(
    preset: str, setting: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(huge_pages=setting, tiers=TierOverrides(emulated=preset))
    one = Machine(config, substrate_of(config), None, [])
    monkeypatch.setattr(machine, "offered_sizes", lambda: (64 << 10, 2 << 20))
    monkeypatch.setattr(machine, "MODULE", replace(MODULE, probe=lambda: NO_MODULE))
    assert bool(one.huge_pages()) == wanted
    monkeypatch.setattr(machine, "MODULE", replace(MODULE, probe=lambda: None))
    assert not one.huge_pages()


@pytest.mark.parametrize("code", ["no-second-tier", "not-permitted", "failed"])
def test_without_tiers_each_attach_gets_an_error_of_its_own(code: str) -> None:
    """The machine keeps an error and raises copies of it. If it raised the kept error itself, that
    error's traceback would keep the variables of every attach request alive."""
    kept = SentinelError(code, "no tiers here", "add memory")
    config = Config()
    one = Machine(config, substrate_of(config), None, [kept])
    with pytest.raises(SentinelError) as refused:
        one.require(cast(ShimLink, None), FastBudget.parse("20%"))
    assert (refused.value.code, str(refused.value)) == (code, str(kept))
    assert kept.__traceback__ is None


def test_the_shared_budget_is_reserved_in_the_fast_tier() -> None:
    capacity_bytes = two_tiers().tiers[0].capacity_bytes
    one = Machine(Config(shared_fast="75%"), substrate_of(Config()), two_tiers(), [])
    assert one.shared is not None
    assert one.shared.size_bytes == capacity_bytes * 3 // 4
    one.budgets.require("a session", capacity_bytes // 4)
    with pytest.raises(SentinelError, match="left of the fast tier's"):
        one.budgets.require("a session", capacity_bytes // 4 + 1)
    config = Config(shared_fast=str(capacity_bytes + 1))
    with pytest.raises(SentinelError, match="shared_fast") as refused:
        Machine(config, substrate_of(config), two_tiers(), [])
    assert refused.value.code == "bad-config"
    assert Machine(Config(shared_fast="50%"), substrate_of(Config()), None, []).shared is None


def test_page_outs_are_limited_by_the_bandwidth_of_swap() -> None:
    paged = Config(tiers=TierOverrides(paged="/"))
    assert (
        Machine(paged, substrate_of(paged), two_tiers(1e9), []).page_out_bytes_per_s()
        == PAGE_OUT_BYTES_PER_S
    )
    swap = Config(tiers=TierOverrides(swap=True))
    assert Machine(swap, substrate_of(swap), two_tiers(1e9), []).page_out_bytes_per_s() == 1e9


def test_the_default_policy_needs_no_scipy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert default_policy(Config()) == "auto"
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert default_policy(Config(policy="g10")) == "g10"
    assert not caplog.text
    assert default_policy(Config()) == "sentinel+spill"
    assert "policy auto needs scipy, which is not installed" in caplog.text


def test_configure_replaces_only_settings_that_need_no_restart() -> None:
    config = Config(fast="20%", tiers=TierOverrides(emulated="cxl"))
    one = Machine(config, substrate_of(config), None, [])
    one.configure(Config(fast="30%", policy="g10", metrics_port=1, tiers=TierOverrides(paged="/")))
    assert one.config == replace(config, fast="30%", policy="g10")
