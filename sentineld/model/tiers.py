# SPDX-License-Identifier: Apache-2.0
"""Tiers: sets of NUMA nodes of one speed, fastest first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class Tier:
    """One tier. Bandwidths, latencies and capacity are 0 if unknown."""

    # NUMA node ids; on emulated and paged tiers, the nodes in the residency map (see the glossary).
    # Empty if the tiers are memory and swap.
    nodes: tuple[int, ...]
    capacity_bytes: int
    read_bytes_per_s: float = 0.0
    write_bytes_per_s: float = 0.0
    read_latency_ns: float = 0.0
    write_latency_ns: float = 0.0
    # On paged tiers: the part of read_latency_ns in which the kernel wakes the thread that serves
    # the fault, and then the thread that waits for the page.
    wake_ns: float = 0.0


class Overlap(StrEnum):
    """Which parts of a stretch's time overlap, according to the timing model."""

    NONE = "none"
    """The extra time of slow accesses is added to the stretch's time with all memory fast."""
    COMPUTE = "compute"
    """Computation and memory accesses overlap: a stretch takes as long as the longer of the two."""
    TIERS = "tiers"
    """Accesses to both tiers overlap: their bandwidths are used concurrently."""


@dataclass(frozen=True)
class Tiers:
    """The tiers of a machine and the cost of moves and births."""

    tiers: tuple[Tier, ...]  # fastest first
    # Bandwidth of moves between tiers. On paged tiers: the harmonic mean of both directions.
    migration_bytes_per_s: float
    # Where the description of the tiers comes from: "config", "sysfs:memory_tiering", "sysfs:hmat",
    # "sysfs:distance", "preset:NAME", "emulated:NAME", "paged" or "swap".
    source: str
    birth_ns_per_byte: float = 0.0  # time of a page fault at first touch; 0: unknown
    # Whether the slow tier is a file. If so, a page must be read into fast memory before it is
    # accessed.
    paged: bool = False
    # The next two settings select variants of the timing model. They do not apply to paged tiers.
    overlap: Overlap = Overlap.NONE
    # Whether moves yield to accesses: while the training accesses slow pages, moves are suspended.
    moves_yield: bool = False
