# SPDX-License-Identifier: Apache-2.0
"""Tiers: sets of NUMA nodes of one speed, fastest first."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """One tier. Bandwidths, latencies and capacity are 0 if unknown."""

    nodes: tuple[int, ...]  # NUMA node ids
    capacity_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    read_latency_ns: float = 0.0
    write_latency_ns: float = 0.0
    # On paged tiers: the part of read_latency_ns in which the kernel wakes the thread that serves
    # the fault and then the thread that waits.
    wake_ns: float = 0.0


@dataclass(frozen=True)
class Tiers:
    """The tiers of a machine and the cost of moves and births."""

    tiers: tuple[Tier, ...]  # fastest first
    # Bandwidth of moves between tiers. On paged tiers: the mean of both directions.
    migration_bytes_per_s: float
    # "config", "sysfs:memory_tiering", "sysfs:hmat", "sysfs:distance", "preset:NAME",
    # "emulated:NAME" or "paged"
    source: str
    birth_ns_per_byte: float = 0.0  # time of a page fault at first touch; 0: unknown
    # Whether the slow tier is a file. If so, a page must be read into fast memory before it is
    # accessed.
    paged: bool = False
