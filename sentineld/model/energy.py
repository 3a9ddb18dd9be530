# SPDX-License-Identifier: Apache-2.0
"""The energy model: the joules of a step, from core seconds and the bytes each tier transfers.

    energy of a step = busy core seconds    x CORE_W
                     + waiting core seconds x WAITING_CORE_W
                     + for each tier: bytes read    x energy to read a byte
                     + for each tier: bytes written x energy to write a byte

A core is busy while it computes for the training or copies moved pages. A core is waiting while a
thread of the training occupies it but waits for moves or for a disk.

The model is used where no energy can be measured: in the simulator, on emulated tiers, and on
machines without RAPL. Its results are always marked as modelled. docs/explanation/energy.md has the
sources of the constants and the model's limits.

As in the timing model, the processor's caches are assumed to serve accesses to tensors smaller than
timing.CACHED_BYTES. The energy model counts no energy for these accesses. On paged tiers, an access
to a slow page of any tensor, small or large, reads the page from the file and writes it to memory.
If the access changes the page, the page is also read from memory and written to the file.

In the shapes of arrays, A is the number of rows in Profile.accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import cached_rows, touched_pages

CORE_W = 6.9
"""Power of a core that computes, with its share of caches, interconnect and memory controllers."""

WAITING_CORE_W = CORE_W / 2
"""Power of a waiting core; see the module's docstring."""

COPY_BYTES_PER_S = 10e9
"""Speed at which one core copies pages between two tiers of memory. If moves take longer because
trainings share the bandwidth, the core is idle for the additional time."""

JOULES_PER_PJ_PER_BIT = 8e-12
"""Joules per byte at 1 pJ per bit."""

Bytes = TypeVar("Bytes", float, Floats)


@dataclass(frozen=True)
class Medium:
    """The energy to transfer a bit between a processor and a memory or disk, links included."""

    read_pj_per_bit: float
    write_pj_per_bit: float

    def joules(self, read_bytes: Bytes, written_bytes: Bytes) -> Bytes:
        """The energy, in joules, to read and to write these numbers of bytes."""
        pj_bytes = read_bytes * self.read_pj_per_bit + written_bytes * self.write_pj_per_bit
        return pj_bytes * JOULES_PER_PJ_PER_BIT


DRAM = Medium(20.0, 20.0)

MEDIA = {
    "dram": DRAM,
    # DRAM behind a link with a transmitter and a receiver in each direction.
    "cxl": Medium(32.0, 32.0),
    "remote": Medium(32.0, 32.0),
    "optane": Medium(31.0, 980.0),
    "nvme": Medium(304.0, 462.0),
}
"""Media by the preset of the slow tier. The part of a preset's name before the first hyphen is the
medium: cxl and cxl-4k differ in the migration bandwidth only, and both use the medium cxl."""

UNKNOWN = "cxl"
"""The medium that is assumed if the kind of the slow tier is unknown."""


@dataclass(frozen=True)
class EnergyModel:
    """The energy of accesses and moves on two tiers. The fast tier is DRAM."""

    slow: Medium
    paged: bool  # see Tiers

    def fast_joules(self, profile: Profile) -> Floats:
        """(A,): energy of each access row if all of its pages are fast."""
        rows = profile.accesses
        joules = DRAM.joules(
            rows["bytes_read"].astype(np.float64), rows["bytes_written"].astype(np.float64)
        )
        found: Floats = np.where(cached_rows(profile), 0.0, joules)
        return found

    def extra_joules(self, profile: Profile) -> Floats:
        """(A,): energy of each access row if all of its pages are slow, minus fast_joules()."""
        rows = profile.accesses
        if self.paged:
            pages_bytes = touched_pages(profile) * profile.page_bytes
            changed_bytes = np.where(rows["bytes_written"] > 0, pages_bytes, 0.0)
            return self.slow.joules(pages_bytes, changed_bytes) + DRAM.joules(
                changed_bytes, pages_bytes
            )
        joules = self.slow.joules(
            rows["bytes_read"].astype(np.float64), rows["bytes_written"].astype(np.float64)
        )
        found: Floats = np.where(cached_rows(profile), 0.0, joules - self.fast_joules(profile))
        return found

    def access_joules(self, profile: Profile, slow: Floats) -> float:
        """Energy of a step's accesses.

        slow: (A,), the share of each access row's pages that is on the slow tier, 0..1.
        """
        return float((self.fast_joules(profile) + self.extra_joules(profile) * slow).sum())

    def copying_s(self, moved_bytes: float) -> float:
        """Core seconds to copy this many bytes; 0 on paged tiers, because disks use DMA."""
        return 0.0 if self.paged else moved_bytes / COPY_BYTES_PER_S

    def moved_joules(self, promoted_bytes: float, demoted_bytes: float) -> float:
        """Energy that memory and links use to move these numbers of bytes to the other tier."""
        return self.slow.joules(promoted_bytes, demoted_bytes) + DRAM.joules(
            demoted_bytes, promoted_bytes
        )


def energy_of(tiers: Tiers) -> EnergyModel:
    """The energy model of the two fastest tiers.

    The name of a preset gives the medium (see MEDIA). The file of paged tiers is assumed to be on
    an NVMe disk. Any other slow tier is assumed to have the medium that UNKNOWN names.
    """
    if tiers.paged:
        return EnergyModel(MEDIA["nvme"], True)
    preset = tiers.source.rpartition(":")[2].partition("-")[0]
    return EnergyModel(MEDIA.get(preset, MEDIA[UNKNOWN]), False)


def core_joules(computing_s: float, waiting_s: float) -> float:
    """Energy of cores. computing_s, waiting_s: sums over all cores, in seconds."""
    return computing_s * CORE_W + waiting_s * WAITING_CORE_W
