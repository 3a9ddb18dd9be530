# SPDX-License-Identifier: Apache-2.0
"""Tiers: sets of NUMA nodes of one speed, fastest first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """One tier. Bandwidths in bytes per second, latencies in ns; 0 where nothing is known."""

    nodes: tuple[int, ...]
    capacity_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    read_latency_ns: float = 0.0
    write_latency_ns: float = 0.0


@dataclass(frozen=True)
class Tiers:
    """All tiers, fastest first, and the bandwidth between them in bytes per second."""

    tiers: tuple[Tier, ...]
    migration_bytes_per_s: float
    source: str  # "sysfs", "config"

    def tier_of_node(self, node: int) -> int | None:
        """Index of the tier that holds the node, or None."""
        for index, tier in enumerate(self.tiers):
            if node in tier.nodes:
                return index
        return None
