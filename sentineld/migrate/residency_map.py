# SPDX-License-Identifier: Apache-2.0
"""Where each page of a session's address ranges is: one int8 node per page.

The map follows what is known to happen (moves, births, drops) between
refreshes from the kernel, so that the mover can decide without asking it at
every boundary. It errs on the side of charging: a birth counts for the whole
range, although the process may touch only a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sentineld.migrate.memory import Memory
from sentineld.migrate.syscalls import Addresses, Status
from sentineld.model.plan import Space
from sentineld.model.tiers import Tiers

ABSENT = -1

Nodes = npt.NDArray[np.int8]


class ResidencyMap:
    """One address range. Offsets and lengths are bytes, whole pages, counted from start."""

    def __init__(self, start: int, length_bytes: int, page_bytes: int = 4096) -> None:
        self.start = start
        self.page_bytes = page_bytes
        self.nodes: Nodes = np.full(length_bytes // page_bytes, ABSENT, dtype=np.int8)

    def span(self, offset: int, length_bytes: int) -> slice:
        """Indices of the range's pages, cut to the map."""
        last = min(-(-(offset + length_bytes) // self.page_bytes), len(self.nodes))
        return slice(min(offset // self.page_bytes, last), last)

    def addresses(self, pages: npt.NDArray[np.int64]) -> Addresses:
        """Addresses of pages given by index."""
        return np.uint64(self.start) + pages.astype(np.uint64) * np.uint64(self.page_bytes)

    def refresh(self, memory: Memory) -> int:
        """Ask where every page is; the number of pages that were other than thought.

        Raises ProcessLookupError when the process is gone.
        """
        return self.apply(
            np.arange(len(self.nodes), dtype=np.int64),
            memory.query_pages(self.addresses(np.arange(len(self.nodes), dtype=np.int64))),
        )

    def apply(self, pages: npt.NDArray[np.int64], status: Status) -> int:
        """Take over move_pages statuses; the number of pages that changed.

        ENOENT and EFAULT mean absent; another error leaves the page as it was thought.
        """
        before = self.nodes[pages]
        gone = (status == -2) | (status == -14)
        after = np.where(status >= 0, status, np.where(gone, ABSENT, before)).astype(np.int8)
        self.nodes[pages] = after
        return int(np.count_nonzero(before != after))

    def births(self, offset: int, length_bytes: int, node: int) -> None:
        """First touches: absent pages come to be on the node, present ones stay where they are."""
        part = self.nodes[self.span(offset, length_bytes)]
        part[part == ABSENT] = node

    def drops(self, offset: int, length_bytes: int) -> None:
        """The process gave the pages back."""
        self.nodes[self.span(offset, length_bytes)] = ABSENT


class Spaces:
    """The maps of a session's address spaces (arena, heap), and sums over them by tier."""

    def __init__(
        self, tiers: Tiers, ranges: Mapping[Space, tuple[int, int]], page_bytes: int = 4096
    ) -> None:
        self.tiers = tiers
        self.page_bytes = page_bytes
        self.maps = {
            space: ResidencyMap(start, length, page_bytes)
            for space, (start, length) in ranges.items()
        }
        # Lookup by node + 1, so that ABSENT (-1) finds -1, too.
        self._tier_of = np.full(129, -1, dtype=np.int8)
        for index, tier in enumerate(tiers.tiers):
            for node in tier.nodes:
                self._tier_of[node + 1] = index

    def tiers_at(self, space: Space, offset: int, length_bytes: int) -> Nodes:
        """Tier of each page of a range; -1: absent or on a node of no tier."""
        residency = self.maps[space]
        return self._tiers_of(residency.nodes[residency.span(offset, length_bytes)])

    def pages_to_move(
        self, space: Space, offset: int, length_bytes: int, tier: int
    ) -> npt.NDArray[np.int64]:
        """Indices of the range's resident pages that are not in the tier."""
        tiers = self.tiers_at(space, offset, length_bytes)
        first = self.maps[space].span(offset, length_bytes).start
        pages: npt.NDArray[np.int64] = np.flatnonzero((tiers >= 0) & (tiers != tier)) + first
        return pages

    def bytes_by_tier(self, nodes: Nodes) -> npt.NDArray[np.int64]:
        """Bytes of pages that are on these nodes, by tier."""
        tiers = self._tiers_of(nodes)
        counts = np.bincount(tiers.astype(np.int16) + 1, minlength=len(self.tiers.tiers) + 1)
        return counts[1:] * self.page_bytes

    def refresh(self, memory: Memory) -> int:
        """Ask for all maps; the number of pages that were other than thought."""
        return sum(residency.refresh(memory) for residency in self.maps.values())

    def _tiers_of(self, nodes: Nodes) -> Nodes:
        tiers: Nodes = self._tier_of[nodes.astype(np.int16) + 1]
        return tiers
