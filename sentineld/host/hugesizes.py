# SPDX-License-Identifier: Apache-2.0
"""What sizes of huge pages the kernel makes where a process asks for them (MADV_HUGEPAGE)."""

from __future__ import annotations

import re
from pathlib import Path

from sentineld.host.sysfs import chosen, read_text
from sentineld.model.protocol import HUGE_BYTES

FOLDER = "kernel/mm/transparent_hugepage"
_SIZE = re.compile(r"hugepages-(\d+)kB")


def offered_sizes(sys_root: Path = Path("/sys")) -> tuple[int, ...]:
    """In bytes, rising. Kernels before 6.8 have HUGE_BYTES alone, which they say nothing of."""
    folder = sys_root / FOLDER
    whole = _mode(folder)
    offered = {"always", "madvise"}
    sizes = {
        int(found[1]) << 10: whole if (mode := _mode(one)) == "inherit" else mode
        for one in folder.glob("hugepages-*kB")
        if (found := _SIZE.fullmatch(one.name))
    }
    sizes.setdefault(HUGE_BYTES, whole)
    return tuple(sorted(size for size, mode in sizes.items() if mode in offered))


def planned_sizes(offered: tuple[int, ...]) -> tuple[int, ...]:
    """Of these what plan/huge.py plans with: HUGE_BYTES, and the largest of the others, for the
    kernel takes the largest that fits."""
    smaller = [size for size in offered if size < HUGE_BYTES]
    return (*smaller[-1:], *(size for size in offered if size == HUGE_BYTES))


def _mode(folder: Path) -> str:
    return chosen(read_text(folder / "enabled") or "")
