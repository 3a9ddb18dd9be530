# SPDX-License-Identifier: Apache-2.0
"""Which substrate a configuration and the --tiers option select."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.machine.choose import substrate_of, with_tiers_option
from sentineld.machine.nodes import KernelSubstrate
from sentineld.machine.paged import PagedSubstrate


def test_the_tiers_option_equals_the_config_setting() -> None:
    assert substrate_of(Config()).emulated == ""
    asked = with_tiers_option(Config(), "emulated:optane")
    assert asked == Config(tiers=TierOverrides(emulated="optane"))
    assert substrate_of(asked).emulated == "optane"
    assert with_tiers_option(asked, None) == asked


def test_paged_tiers_use_the_named_directory_or_the_state_directory(tmp_path: Path) -> None:
    config = Config(state_dir=str(tmp_path))
    assert with_tiers_option(config, "paged").tiers.paged == str(tmp_path)
    asked = with_tiers_option(config, f"paged:{tmp_path}/data")
    assert asked.tiers == TierOverrides(paged=f"{tmp_path}/data")
    (tmp_path / "data").mkdir()
    assert isinstance(substrate_of(asked), PagedSubstrate)
    assert isinstance(substrate_of(config), KernelSubstrate)


def test_the_option_replaces_the_configured_kind(tmp_path: Path) -> None:
    config = Config(tiers=TierOverrides(emulated="cxl"))
    assert with_tiers_option(config, f"paged:{tmp_path}").tiers.emulated == ""
    config = Config(tiers=TierOverrides(paged=str(tmp_path)))
    assert with_tiers_option(config, "emulated:cxl").tiers.paged == ""


def test_swap_is_a_kind_of_tiers() -> None:
    asked = with_tiers_option(Config(tiers=TierOverrides(emulated="cxl")), "swap")
    assert asked == Config(tiers=TierOverrides(swap=True))
    assert substrate_of(asked).swap
    assert not substrate_of(Config()).swap
    assert not with_tiers_option(asked, "emulated:cxl").tiers.swap
    both = Config(tiers=TierOverrides(emulated="cxl", swap=True))
    with pytest.raises(SentinelError, match=r"both tiers\.emulated and tiers\.swap"):
        substrate_of(both)


def test_two_kinds_at_once_are_refused(tmp_path: Path) -> None:
    config = Config(tiers=TierOverrides(emulated="cxl", paged=str(tmp_path)))
    with pytest.raises(SentinelError, match="both") as caught:
        substrate_of(config)
    assert caught.value.code == "bad-config"


@pytest.mark.parametrize("option", ["cxl", "emulated:", "", "emulate:cxl", "page", "swap:zram"])
def test_a_malformed_tiers_option_is_refused(option: str) -> None:
    with pytest.raises(SentinelError) as caught:
        with_tiers_option(Config(), option)
    assert caught.value.code == "usage"
