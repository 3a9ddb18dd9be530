# SPDX-License-Identifier: Apache-2.0
"""The machine's swap areas."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


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
    # Filename Type Size Used Priority; a space in a file name is written as \040.
    rows = [line.split() for line in lines]
    return Swap(sum(int(row[2]) << 10 for row in rows), sum(int(row[3]) << 10 for row in rows))
