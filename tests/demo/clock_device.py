# SPDX-License-Identifier: Apache-2.0
"""Finds the device whose memory has the modelled clock (docs/explanation/demo-clock.md)."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

IDS = ("0x1af4", "0x1110")
"""PCI vendor and device of QEMU's shared memory (ivshmem-plain)."""
MEMORY = "resource2"
"""The file of the device's shared memory, its BAR 2."""


def find_clock(devices: Path = Path("/sys/bus/pci/devices")) -> Path | None:
    """Enable the device and return the file for mapping its memory, which has the clock. Return
    None if there is no such device."""
    for device in sorted(devices.glob("*")):
        if tuple((device / name).read_text().strip() for name in ("vendor", "device")) == IDS:
            # A PCI device does not respond to accesses to its memory until it is enabled.
            (device / "enable").write_text("1")
            return device / MEMORY
    return None


def clock_ns(path: Path) -> Callable[[], int]:
    """A function that reads the modelled time, in nanoseconds. path: see find_clock()."""
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
    words = memoryview(memory).cast("Q")
    return lambda: words[0] // 1000
