# SPDX-License-Identifier: Apache-2.0
"""The memory of a session's process: how much is resident, and the units that can be swapped."""

from __future__ import annotations

import numpy as np

from sentineld.heat.target import HeatTarget
from sentineld.model.arrays import Integers, Table
from sentineld.model.records import PAGE_RUN_DTYPE
from sentineld.observe.anonymous import without
from sentineld.observe.memory_use import (
    MemoryUse,
    pinned_ranges,
    read_memory_use,
    resident_bytes,
)
from sentineld.temperature.units import UNIT_PAGES_MIN, Units, unit_pages


class ProcessMemory:
    """Reads the process's page tables. All methods raise ProcessLookupError if its address space is
    gone."""

    def __init__(self, target: HeatTarget) -> None:
        self._target = target
        self._size_pages = UNIT_PAGES_MIN
        self.use = MemoryUse()
        """The result of the last refresh()."""
        self._pinned: list[tuple[int, int]] = []
        """(first page, end page) of each range that could not be swapped out when units() was
        called last."""

    def resident_bytes(self) -> int:
        """Resident anonymous bytes."""
        self._target.pages.require_address_space()
        return resident_bytes(self._target.pid)

    def refresh(self) -> None:
        """Read how much memory of each kind the process uses."""
        self._target.pages.require_address_space()
        self.use = read_memory_use(self._target.pid)

    def units(self, resize: bool = False) -> Units:
        """The units of pages that the kernel can swap out. resize: adapt the size of the units to
        the size of the process."""
        if self.use.locked_bytes or self.use.huge_bytes:
            self._pinned = pinned_ranges(self._target.pid)
        runs = self._swappable()
        if resize:
            wanted = unit_pages(int(runs["pages"].sum()))
            # Do not shrink the units of a process whose size varies a little.
            if wanted > self._size_pages or 4 * wanted <= self._size_pages:
                self._size_pages = wanted
        return Units(runs, self._size_pages)

    def runs_of(self, numbers: Integers) -> Table:
        """The pages of some units, ascending; PAGE_RUN_DTYPE. numbers: ascending, distinct."""
        size = self._size_pages
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        groups = [group for group in np.split(numbers, breaks) if len(group)]
        found = [self._swappable(int(one[0]) * size, (int(one[-1]) + 1) * size) for one in groups]
        return np.concatenate([np.zeros(0, PAGE_RUN_DTYPE), *found])

    def _swappable(self, first: int = 0, end: int | None = None) -> Table:
        runs = self._target.pages.runs(first, end)
        if self.use.locked_bytes or self.use.huge_bytes:
            runs = without(runs, self._pinned)
        return runs

    def skipped_bytes(self) -> dict[str, int]:
        """Bytes that a session never pages out, by kind: locked (mlock), huge (hugetlb), shared
        (memory shared with other processes). Kinds that the process does not use are left out."""
        use = self.use
        kinds = {"locked": use.locked_bytes, "huge": use.huge_bytes, "shared": use.shared_bytes}
        return {kind: size for kind, size in kinds.items() if size}
