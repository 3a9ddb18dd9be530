# SPDX-License-Identifier: Apache-2.0
"""Tiers by name, for machines that one does not own: figures of one processor socket.

docs/reference/timing.md gives the source of each figure. A socket's figures are
for all its cores; a training of few threads gets its part (SOCKET_THREADS).
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from sentineld.base.errors import SentinelError
from sentineld.config import TierOverrides
from sentineld.model.tiers import Tier, Tiers

SOCKET_THREADS = 12
"""Threads that together draw a socket's DRAM bandwidth; one draws about a twelfth of it."""

DRAM_BYTES_PER_S = 105e9
"""Six channels of DDR4-2666, loaded sequential reads: 105.9 GB/s (Izraelevitz et al. 2019)."""

FIGURES = (
    "fast_read_bytes_per_s",
    "fast_write_bytes_per_s",
    "slow_read_bytes_per_s",
    "slow_write_bytes_per_s",
    "migration_bytes_per_s",
)
"""The keys of [tiers] that describe two tiers whole."""


@dataclass(frozen=True)
class Preset:
    """A slow tier beside DRAM: bytes per second of one socket."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    migration_bytes_per_s: float


PRESETS = {
    # A second node of the same memory: the check that nothing costs anything there.
    "dram": Preset(DRAM_BYTES_PER_S, DRAM_BYTES_PER_S, 10e9),
    # One expander of eight lanes.
    "cxl": Preset(24e9, 20e9, 10e9),
    # Six Optane DIMMs, interleaved.
    "optane": Preset(38e9, 12e9, 8e9),
}


def preset_tiers(name: str, threads: int) -> Tiers:
    """The preset's two tiers for a training of so many threads.

    All bandwidths are the socket's times threads / SOCKET_THREADS, at most
    once: what the training's share of the socket gets. Capacities are not
    known (0). Raises SentinelError("usage") for a name that there is not.
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PRESETS)}"
        raise SentinelError("usage", f"no preset of tiers is named {name!r}", hint)
    if threads < 1:
        raise SentinelError("usage", f"a training of {threads} threads", "give 1 or more")
    preset, share = PRESETS[name], min(threads / SOCKET_THREADS, 1.0)
    fast = Tier((0,), 0, DRAM_BYTES_PER_S * share, DRAM_BYTES_PER_S * share)
    slow = Tier((1,), 0, preset.read_bytes_per_s * share, preset.write_bytes_per_s * share)
    return Tiers((fast, slow), preset.migration_bytes_per_s * share, f"preset:{name}")


def own_tiers(figures: TierOverrides) -> Tiers:
    """The tiers that a configuration's [tiers] table describes whole, taken as they are. Raises
    SentinelError("bad-config") if one of the five bandwidths is missing."""
    missing = [name for name in FIGURES if getattr(figures, name) <= 0]
    if missing:
        raise SentinelError(
            "bad-config",
            f"no bandwidth is given for tiers.{missing[0]}",
            f"give all of {', '.join(FIGURES)}",
        )
    fast = Tier(
        figures.fast or (0,), 0, figures.fast_read_bytes_per_s, figures.fast_write_bytes_per_s
    )
    slow = Tier(
        figures.slow or (1,), 0, figures.slow_read_bytes_per_s, figures.slow_write_bytes_per_s
    )
    return Tiers((fast, slow), figures.migration_bytes_per_s, "config", figures.birth_ns_per_byte)
