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
from sentineld.machine.swapped import SwapSubstrate

PAGED, SWAP = "paged", "swap"


def substrate_of(config: Config) -> Substrate:
    """The substrate that the configuration selects. Raises SentinelError("bad-config")."""
    tiers = config.tiers
    kinds = {"emulated": tiers.emulated, PAGED: tiers.paged, SWAP: tiers.swap}
    chosen = [f"tiers.{kind}" for kind, value in kinds.items() if value]
    if len(chosen) > 1:
        raise SentinelError(
            "bad-config", f"both {chosen[0]} and {chosen[1]} are set", "remove one of the two"
        )
    if tiers.emulated:
        return EmulatedSubstrate(tiers)
    if tiers.paged:
        return PagedSubstrate(tiers)
    if tiers.swap:
        return SwapSubstrate(tiers)
    return KernelSubstrate(tiers)


def with_tiers_option(config: Config, option: str | None) -> Config:
    """Apply the daemon's --tiers option, such as emulated:cxl, paged:/mnt/nvme or swap. Raises
    SentinelError("usage")."""
    if option is None:
        return config
    kind, _, value = option.partition(":")
    if kind == PAGED:
        tiers = replace(config.tiers, paged=value or config.state_dir, emulated="", swap=False)
    elif option.startswith(EMULATED_PREFIX) and value:
        tiers = replace(config.tiers, emulated=value, paged="", swap=False)
    elif option == SWAP:
        tiers = replace(config.tiers, emulated="", paged="", swap=True)
    else:
        raise SentinelError(
            "usage",
            f"--tiers {option!r}",
            "give emulated:PRESET, such as emulated:cxl, or paged:DIRECTORY, or swap",
        )
    return replace(config, tiers=tiers)
