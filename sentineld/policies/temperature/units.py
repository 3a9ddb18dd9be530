# SPDX-License-Identifier: Apache-2.0
"""The units of an address space: aligned blocks of pages that are observed and moved together.

A unit exists while at least one of its pages is resident or swapped out. Larger processes have
larger units. This limits the number of units, and so the total work of a scan, which grows with
this number.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Mask, Table
from sentineld.model.records import PAGE_RUN_DTYPE

UNIT_PAGES_MIN = 16
"""Smallest unit: 64 KiB with pages of 4 KiB."""
UNITS_MAX = 2048
"""Larger units are used if the pages of a process would fill more units than this. Scattered memory
can have more units, because it fills them only partly."""


def unit_pages(pages: int) -> int:
    """The size of units for a process with this number of pages: a power of two."""
    size = UNIT_PAGES_MIN
    while pages > size * UNITS_MAX:
        size *= 2
    return size


class Units:
    """N units, in ascending order of their addresses, and the runs of pages in each."""

    def __init__(self, runs: Table, size_pages: int) -> None:
        """runs: PAGE_RUN_DTYPE, ascending and disjoint. size_pages: pages in a unit."""
        self.size_pages = size_pages
        page, pages = runs["page"], runs["pages"]
        unit = page // size_pages
        parts = (page + pages - 1) // size_pages - unit + 1
        # Cut each run at the borders of units. run: (P,), the run of each part.
        run = np.repeat(np.arange(len(runs)), parts)
        number = unit[run] + np.arange(len(run)) - np.repeat(np.cumsum(parts) - parts, parts)
        self._page: Integers = np.maximum(page[run], number * size_pages)
        end = np.minimum((page + pages)[run], (number + 1) * size_pages)
        self._pages: Integers = end - self._page
        self._is_resident: Mask = runs["resident"][run]
        self.numbers: Integers
        """(N,): number of the unit, which is its first page number divided by size_pages."""
        self._unit: Integers
        self.numbers, self._unit = np.unique(number, return_inverse=True)
        self.resident = self._sum(self._is_resident)
        """(N,): resident pages."""
        self.swapped = self._sum(~self._is_resident)
        """(N,): pages that are swapped out."""

    def __len__(self) -> int:
        return len(self.numbers)

    def _sum(self, parts: Mask) -> Integers:
        found = np.bincount(self._unit[parts], self._pages[parts], minlength=len(self.numbers))
        return found.astype(np.int64)

    def replaced(self, numbers: Integers, runs: Table) -> Units:
        """A copy of these units in which the contents of some units are replaced.

        numbers: the units whose contents are replaced. runs: their new contents; PAGE_RUN_DTYPE.
        """
        kept = ~np.isin(self.numbers, numbers)[self._unit]
        table = np.zeros(int(kept.sum()), PAGE_RUN_DTYPE)
        table["page"], table["pages"] = self._page[kept], self._pages[kept]
        table["resident"] = self._is_resident[kept]
        table = np.concatenate([table, runs])
        return Units(table[np.argsort(table["page"])], self.size_pages)

    def origin(self, before: Units) -> Integers:
        """(N,): index of the unit of `before` that each unit continues, or -1.

        If the sizes differ, this is the first unit of `before` that overlaps the unit.
        """
        start, end = self.numbers * self.size_pages, (self.numbers + 1) * self.size_pages
        found = np.searchsorted((before.numbers + 1) * before.size_pages, start, side="right")
        if not len(before):
            return np.full(len(self), -1)
        overlaps = before.numbers[np.minimum(found, len(before) - 1)] * before.size_pages < end
        return np.where((found < len(before)) & overlaps, found, -1)

    def sample(self, units: Integers, random: np.random.Generator) -> Integers:
        """The number of one random resident page of each of these units. Each unit must have
        resident pages."""
        parts = np.flatnonzero(self._is_resident)
        before = np.cumsum(self._pages[parts]) - self._pages[parts]
        # For each unit, the number of resident pages in all units before it.
        base = np.cumsum(self.resident) - self.resident
        at = base[units] + random.integers(0, self.resident[units])
        part = np.searchsorted(before, at, side="right") - 1
        sampled: Integers = self._page[parts[part]] + at - before[part]
        return sampled

    def ranges(self, units: Integers, resident: bool, pages_max: int) -> Table:
        """The resident or the swapped runs of some units, in the order in which the units are
        given, up to pages_max pages; PAGE_RUN_DTYPE. The last run may be cut."""
        rank = np.full(len(self), -1)
        rank[units] = np.arange(len(units))
        parts = np.flatnonzero((self._is_resident == resident) & (rank[self._unit] >= 0))
        parts = parts[np.argsort(rank[self._unit[parts]], kind="stable")]
        left = pages_max - (np.cumsum(self._pages[parts]) - self._pages[parts])
        parts, left = parts[left > 0], left[left > 0]
        found = np.zeros(len(parts), PAGE_RUN_DTYPE)
        found["page"] = self._page[parts]
        found["pages"] = np.minimum(self._pages[parts], left)
        found["resident"] = resident
        return found


def no_units() -> Units:
    """Units of an address space without pages."""
    return Units(np.zeros(0, PAGE_RUN_DTYPE), UNIT_PAGES_MIN)
