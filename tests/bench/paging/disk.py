# SPDX-License-Identifier: Apache-2.0
"""Counts the bytes that the disk under a folder has read and written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

SECTOR_BYTES = 512  # unit of /sys/dev/block/*/stat, independent of the disk's sector size


class Transferred(NamedTuple):
    """Bytes that a disk has read and written since the machine's start."""

    read_bytes: int
    written_bytes: int


class Disk:
    """The block device of a folder's file system."""

    def __init__(self, folder: Path, counted: bool = True) -> None:
        """counted: whether the device's counters are needed. Raises RuntimeError if they are needed
        and missing."""
        self.folder = folder
        number = folder.stat().st_dev
        self._stat = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat")
        if counted and not self._stat.exists():
            raise RuntimeError(f"{folder} is not on a disk; choose a folder on a disk")

    def transferred(self) -> Transferred | None:
        """The device's counters (Documentation/block/stat.rst), or None if the device has none."""
        if not self._stat.exists():
            return None
        fields = [int(field) for field in self._stat.read_text().split()]
        return Transferred(fields[2] * SECTOR_BYTES, fields[6] * SECTOR_BYTES)

    def since(
        self, before: Transferred | None, steps: int
    ) -> tuple[float, float] | tuple[None, None]:
        """(bytes read, bytes written) per step since `before`; (None, None) without counters."""
        now = self.transferred()
        if before is None or now is None:
            return None, None
        return (
            (now.read_bytes - before.read_bytes) / steps,
            (now.written_bytes - before.written_bytes) / steps,
        )
