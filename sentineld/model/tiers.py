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
    """All tiers, fastest first, and the bandwidth between them in bytes per second.

    birth_ns_per_byte: what it takes the kernel to make a page, which a process waits for at its
    first touch; 0: not known.
    """

    tiers: tuple[Tier, ...]
    migration_bytes_per_s: float
    source: str  # "config", "sysfs:memory_tiering", "sysfs:hmat" or "sysfs:distance"
    birth_ns_per_byte: float = 0.0
