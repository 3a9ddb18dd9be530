# SPDX-License-Identifier: Apache-2.0
"""The times that the modelled clock charges: those of a machine with DRAM and a CXL expander.

The clock uses a preset's bandwidths, but not sentineld's timing model: it charges each cache miss
of the emulated CPUs, including those that the daemon and the kernel cause.
docs/explanation/demo-clock.md explains the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentineld.host.presets import preset_tiers

PRESET = "cxl"
THREADS = 1
"""The workload has one thread, so it gets one thread's share of the socket's bandwidths."""

LINE_BYTES = 64
INSTRUCTION_PS = 333
"""One instruction per cycle at 3 GHz."""


@dataclass(frozen=True)
class Prices:
    """Times in picoseconds. The tuples are indexed by node."""

    instruction_ps: int
    load_ps: tuple[int, ...]  # of a load that misses the cache
    store_ps: tuple[int, ...]  # of a store that misses the cache


def line_ps(bytes_per_s: float) -> int:
    """The time to transfer one cache line at the given bandwidth, in ps."""
    return round(LINE_BYTES / bytes_per_s * 1e12)


def preset_prices(name: str = PRESET, threads: int = THREADS) -> Prices:
    """The prices of a preset's two memory tiers."""
    tiers = preset_tiers(name, threads).tiers
    return Prices(
        INSTRUCTION_PS,
        tuple(line_ps(tier.read_bytes_per_s) for tier in tiers),
        tuple(line_ps(tier.write_bytes_per_s) for tier in tiers),
    )
