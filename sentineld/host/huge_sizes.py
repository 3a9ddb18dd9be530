# SPDX-License-Identifier: Apache-2.0
"""Sizes of huge pages that the kernel allocates under MADV_HUGEPAGE."""

from __future__ import annotations

import re
from pathlib import Path

from sentineld.host.sysfs import chosen, read_text
from sentineld.model.protocol import HUGE_BYTES

FOLDER = "kernel/mm/transparent_hugepage"
_SIZE = re.compile(r"hugepages-(\d+)kB")


def offered_sizes(sys_root: Path = Path("/sys")) -> tuple[int, ...]:
    """Enabled sizes in bytes, ascending.

    Kernels before 6.8 have no directory per size: HUGE_BYTES is the only size on such a kernel.
    """
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
    """The offered sizes that plan/huge.py uses: HUGE_BYTES, and the largest size below HUGE_BYTES.

    Where a page of HUGE_BYTES does not fit, the kernel allocates a page of the next smaller enabled
    size that fits.
    """
    smaller = [size for size in offered if size < HUGE_BYTES]
    return (*smaller[-1:], *(size for size in offered if size == HUGE_BYTES))


def _mode(folder: Path) -> str:
    return chosen(read_text(folder / "enabled") or "")
