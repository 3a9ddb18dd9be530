# SPDX-License-Identifier: Apache-2.0
"""Presets: the tiers of well-known kinds of machines, by name.

docs/reference/timing.md gives the source of each figure. A memory tier's bandwidth is the total
that all cores of one processor socket reach together. A training with fewer than SOCKET_THREADS
threads gets a part of this bandwidth, in proportion to its number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.config import TierOverrides, load
from sentineld.model.tiers import Overlap, Tier, Tiers

SOCKET_THREADS = 12
"""Number of threads that saturate a socket's DRAM: one thread reaches 1/12 of the bandwidth."""

DRAM_BYTES_PER_S = 105e9
"""Under load, six channels of DDR4-2666 deliver 105.9 GB/s of sequential reads (Izraelevitz et al.
2019)."""

FIGURES = (
    "fast_read_bytes_per_s",
    "fast_write_bytes_per_s",
    "slow_read_bytes_per_s",
    "slow_write_bytes_per_s",
    "migration_bytes_per_s",
)
"""The keys of [tiers] that are required to describe two tiers completely."""


@dataclass(frozen=True)
class Preset:
    """A slow tier next to DRAM, described by the bandwidths of one socket or disk."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    migration_bytes_per_s: float
    read_latency_ns: float = 0.0
    # Whether the slow tier is a file. A file's bandwidths do not depend on the number of threads.
    paged: bool = False


PRESETS = {
    # The slow tier is DRAM, too. This preset is for checking that a step with two tiers of the same
    # speed takes no longer than a step with one tier.
    "dram": Preset(DRAM_BYTES_PER_S, DRAM_BYTES_PER_S, 10e9),
    # One CXL memory expander with eight lanes.
    "cxl": Preset(24e9, 20e9, 10e9),
    # The same expander, but pages of 4 KiB are moved, which is slower than moving pages of 2 MiB.
    "cxl-4k": Preset(24e9, 20e9, 3.5e9),
    # The DRAM of another socket, behind three UPI links.
    "remote": Preset(62.4e9, 62.4e9, 10e9),
    # Six Optane DIMMs, interleaved.
    "optane": Preset(38e9, 12e9, 8e9),
    # A file on an NVMe disk. The migration bandwidth is the harmonic mean of the read and the write
    # bandwidth, because moving a page to the file and back takes one write and one read.
    "nvme": Preset(1.05e9, 2.6e9, 2 / (1 / 1.05e9 + 1 / 2.6e9), 70e3, paged=True),
}


def preset_tiers(name: str, threads: int) -> Tiers:
    """The preset's two tiers for a training of `threads` threads.

    Each bandwidth of memory is the socket's bandwidth times min(threads / SOCKET_THREADS, 1).
    Capacities are unknown (0). Raises SentinelError("usage") for an unknown name or fewer than 1
    thread.
    """
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"presets: {', '.join(PRESETS)}"
        raise SentinelError("usage", f"no tier preset is named {name!r}", hint)
    if threads < 1:
        raise SentinelError("usage", f"the number of threads is {threads}", "give 1 or more")
    preset, share = PRESETS[name], min(threads / SOCKET_THREADS, 1.0)
    fast = Tier((0,), 0, DRAM_BYTES_PER_S * share, DRAM_BYTES_PER_S * share)
    share = 1.0 if preset.paged else share
    read, write = preset.read_bytes_per_s * share, preset.write_bytes_per_s * share
    slow = Tier((1,), 0, read, write, preset.read_latency_ns)
    rate = preset.migration_bytes_per_s * share
    return Tiers((fast, slow), rate, f"preset:{name}", paged=preset.paged)


def named_tiers(name: str, threads: int) -> Tiers:
    """The tiers of a preset, or the tiers that the [tiers] table of a .toml file describes.

    Bandwidths from a .toml file are not scaled by the number of threads. Raises
    SentinelError("usage") or SentinelError("bad-config").
    """
    if is_tiers_file(name):
        return configured_tiers(load(Path(name)).tiers)
    return preset_tiers(name, threads)


def is_tiers_file(name: str) -> bool:
    """Whether `name` is the name of a file that describes tiers, not of a preset."""
    return name not in PRESETS and (name.endswith(".toml") or "/" in name)


def configured_tiers(figures: TierOverrides) -> Tiers:
    """The two tiers that a config's [tiers] table describes completely. The figures are not
    scaled by the number of threads.

    Raises SentinelError("bad-config") if one of the five bandwidths is missing.
    """
    missing = [name for name in FIGURES if getattr(figures, name) <= 0]
    if missing:
        raise SentinelError(
            "bad-config",
            f"tiers.{missing[0]} is missing",
            f"give all of {', '.join(FIGURES)}",
        )
    fast = Tier(
        figures.fast or (0,), 0, figures.fast_read_bytes_per_s, figures.fast_write_bytes_per_s
    )
    slow = Tier(
        figures.slow or (1,), 0, figures.slow_read_bytes_per_s, figures.slow_write_bytes_per_s
    )
    return Tiers(
        (fast, slow),
        figures.migration_bytes_per_s,
        "config",
        figures.birth_ns_per_byte,
        overlap=Overlap(figures.overlap),
        moves_yield=figures.moves_yield,
    )
