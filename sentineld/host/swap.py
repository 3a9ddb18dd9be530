# SPDX-License-Identifier: Apache-2.0
"""The machine's swap areas."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sentineld.host.mounts import unescaped

MEMORY_FAULT_S = 10e-6
"""Time that an access to a swapped page waits if the page is compressed in memory (zram)."""
DISK_FAULT_S = 100e-6
"""Time that an access to a swapped page waits if the disk's read time has not been measured."""
DISK_FAULT_S_RANGE = 20e-6, 20e-3
"""Limits on a disk's mean read time."""
READS_MIN = 100
"""A disk's mean read time is used only if the disk has served at least this number of reads."""


class Swap(NamedTuple):
    """All swap areas together."""

    total_bytes: int
    used_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes that are not in use."""
        return self.total_bytes - self.used_bytes


def read_swap(proc: Path = Path("/proc")) -> Swap:
    """The total of all areas in /proc/swaps; 0 if the kernel has no swap."""
    try:
        lines = (proc / "swaps").read_text().splitlines()[1:]
    except FileNotFoundError:
        return Swap(0, 0)
    # Filename Type Size Used Priority. A file name contains no spaces: see unescaped().
    rows = [line.split() for line in lines]
    return Swap(sum(int(row[2]) << 10 for row in rows), sum(int(row[3]) << 10 for row in rows))


def fault_s(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> float:
    """Time, in seconds, that an access to a swapped page waits. This is the mean time, limited to
    DISK_FAULT_S_RANGE, of all reads since the boot from the device that the kernel fills first. If
    this device is zram or unknown, or has served fewer than READS_MIN reads, the time is a
    constant. Of several devices with the highest priority, the slowest one counts."""
    try:
        lines = (proc / "swaps").read_text().splitlines()[1:]
    except FileNotFoundError:
        lines = []
    rows = [line.split() for line in lines]
    highest = max((int(row[4]) for row in rows), default=0)
    times = [_area_fault_s(row[0], sys) for row in rows if int(row[4]) == highest]
    return max(times, default=DISK_FAULT_S)


def _area_fault_s(name: str, sys: Path) -> float:
    try:
        found = os.stat(unescaped(name))
        number = found.st_rdev or found.st_dev
        device = (sys / f"dev/block/{os.major(number)}:{os.minor(number)}").resolve(strict=True)
        if device.name.startswith("zram"):
            return MEMORY_FAULT_S
        counters = (device / "stat").read_text().split()
    except OSError:
        return DISK_FAULT_S  # for example a file system without a device of its own
    reads, read_ms = int(counters[0]), int(counters[3])
    if reads < READS_MIN:
        return DISK_FAULT_S
    lowest, highest = DISK_FAULT_S_RANGE
    return min(max(read_ms * 1e-3 / reads, lowest), highest)
