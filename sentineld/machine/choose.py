# SPDX-License-Identifier: Apache-2.0
"""Find the substrate that the configuration selects."""

from __future__ import annotations

from dataclasses import replace

from sentineld.base.errors import SentinelError
from sentineld.config import Config
from sentineld.machine.emulated import EMULATED_PREFIX, EmulatedSubstrate
from sentineld.machine.nodes import KernelSubstrate
from sentineld.machine.paged import PagedSubstrate
from sentineld.machine.substrate import Substrate

PAGED = "paged"


def substrate_of(config: Config) -> Substrate:
    """The substrate that the configuration selects. Raises SentinelError("bad-config")."""
    tiers = config.tiers
    if tiers.emulated and tiers.paged:
        raise SentinelError(
            "bad-config", "both tiers.emulated and tiers.paged are set", "remove one of the two"
        )
    if tiers.emulated:
        return EmulatedSubstrate(tiers)
    if tiers.paged:
        return PagedSubstrate(tiers)
    return KernelSubstrate(tiers)


def with_tiers_option(config: Config, option: str | None) -> Config:
    """Apply the daemon's --tiers option, such as emulated:cxl or paged:/mnt/nvme. Raises
    SentinelError("usage")."""
    if option is None:
        return config
    kind, _, value = option.partition(":")
    if kind == PAGED:
        tiers = replace(config.tiers, paged=value or config.state_dir, emulated="")
    elif option.startswith(EMULATED_PREFIX) and value:
        tiers = replace(config.tiers, emulated=value, paged="")
    else:
        raise SentinelError(
            "usage",
            f"--tiers {option!r}",
            "give emulated:PRESET, such as emulated:cxl, or paged:DIRECTORY",
        )
    return replace(config, tiers=tiers)
