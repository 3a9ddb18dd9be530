# SPDX-License-Identifier: Apache-2.0
"""A set of pages, stored as ranges."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sentineld.migrate.pending import Pages
from sentineld.model.arrays import Mask


class PageSet:
    """The pages that are in any of the given ranges of page numbers."""

    def __init__(self, ranges: Iterable[slice]) -> None:
        merged: list[list[int]] = []
        for start, stop in sorted((one.start, one.stop) for one in ranges if one.start < one.stop):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(stop, merged[-1][1])
            else:
                merged.append([start, stop])
        self.ranges = [slice(start, stop) for start, stop in merged]
        """The set as disjoint ranges that do not touch each other, in order."""
        self.starts = np.array([start for start, _ in merged], np.int64)
        self.stops = np.array([stop for _, stop in merged], np.int64)

    def within(self, pages: slice) -> list[slice]:
        """The parts of this range that are in the set, in order."""
        first = int(self.stops.searchsorted(pages.start, "right"))
        last = int(self.starts.searchsorted(pages.stop, "left"))
        return [
            slice(max(one.start, pages.start), min(one.stop, pages.stop))
            for one in self.ranges[first:last]
        ]

    def has(self, pages: Pages) -> Mask:
        """(len(pages),): which of these pages are in the set."""
        found: Mask = self.stops.searchsorted(pages, "right") != self.starts.searchsorted(
            pages, "right"
        )
        return found
