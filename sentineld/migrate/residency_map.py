# SPDX-License-Identifier: Apache-2.0
"""The node of each page of a session's address ranges, as one int8 per page.

Between refreshes from the kernel, the map is updated by moves and by expected births
and drops, so that the mover does not have to query the kernel at each boundary. The map
overestimates rather than underestimates residency: a birth counts for its whole range,
although the process may touch only a part of it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.migrate.process_memory import Memory
from sentineld.migrate.syscalls import Addresses, Status
from sentineld.model.arrays import Mask, Table
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers
from sentineld.plan.residency import ABSENT as ABSENT_TIER

ABSENT = -1
FAST = 0
"""Number of the fast tier."""

QUERY_PAGES = 1 << 16
"""Number of pages in one query. It is limited because each page takes 50 bytes of memory during the
query, but only one byte in the map."""

Nodes = npt.NDArray[np.int8]


class Part(NamedTuple):
    """The new entries of consecutive pages of a map."""

    pages: slice
    nodes: Nodes


class ResidencyMap:
    """The map of one address range. Offsets are bytes from the start of the range, multiples of the
    page size."""

    def __init__(
        self,
        start: int,
        length_bytes: int,
        page_bytes: int = PAGE_BYTES,
        tiers: Sequence[Sequence[int]] = ((0,), (1,)),
    ) -> None:
        """tiers: the nodes of each tier."""
        self.start = start
        self.page_bytes = page_bytes
        self.nodes: Nodes = np.full(length_bytes // page_bytes, ABSENT, dtype=np.int8)
        self.tier_pages = [0] * len(tiers)
        """Number of pages on each tier."""
        self._tiers = tiers
        self._tier_of = {node: tier for tier, nodes in enumerate(tiers) for node in nodes}

    @property
    def fast_pages(self) -> int:
        """Number of pages on the fast tier."""
        return self.tier_pages[FAST]

    def span(self, offset: int, length_bytes: int) -> slice:
        """Indices of the range's pages, clipped to the map."""
        last = min(-(-(offset + length_bytes) // self.page_bytes), len(self.nodes))
        return slice(min(offset // self.page_bytes, last), last)

    def addresses(self, pages: npt.NDArray[np.int64]) -> Addresses:
        """Addresses of pages given by index."""
        return np.uint64(self.start) + pages.astype(np.uint64) * np.uint64(self.page_bytes)

    def count(self, nodes: Nodes) -> list[int]:
        """For each tier, how many of these entries of a map are nodes of the tier."""
        return [
            sum(int(np.count_nonzero(nodes == node)) for node in of_tier) for of_tier in self._tiers
        ]

    def refresh(self, memory: Memory) -> int:
        """Query all pages; returns the number of entries that changed.

        Raises ProcessLookupError if the process is gone.
        """
        return self.replace(self.read(memory))

    def read(self, memory: Memory) -> list[Part]:
        """Query all pages, but leave the map unchanged. Returns, for replace(), the new entries of
        the parts of the map that have changed. The map must not change before replace() is called.

        Raises ProcessLookupError if the process is gone.
        """
        found = []
        for first in range(0, len(self.nodes), QUERY_PAGES):
            span = slice(first, min(first + QUERY_PAGES, len(self.nodes)))
            pages = np.arange(span.start, span.stop, dtype=np.int64)
            before = self.nodes[span]
            after = _after(before, memory.query_pages(self.addresses(pages)))
            if not np.array_equal(before, after):
                found.append(Part(span, after))
        return found

    def replace(self, parts: Sequence[Part]) -> int:
        """Replace these parts of the map; returns the number of entries that changed."""
        return sum(self._set(pages, self.nodes[pages], nodes) for pages, nodes in parts)

    def apply(self, pages: npt.NDArray[np.int64], status: Status) -> int:
        """Apply the statuses of a move_pages call; returns the number of entries that changed.

        ENOENT and EFAULT mean absent; other errors leave the entry unchanged.
        """
        before = self.nodes[pages]
        return self._set(pages, before, _after(before, status))

    def _set(self, pages: npt.NDArray[np.int64] | slice, before: Nodes, after: Nodes) -> int:
        """Change the entries of these pages; returns the number of entries that changed."""
        changed = int(np.count_nonzero(before != after))
        if changed:
            # Other threads may read the numbers at any time, so each number changes only once.
            counts = zip(self.count(after), self.count(before), strict=True)
            self._add(new - old for new, old in counts)
        self.nodes[pages] = after  # last, because `before` may be a view of the map
        return changed

    def births(self, pages: slice, node: int) -> npt.NDArray[np.int64]:
        """Record first touches: absent pages appear on the node, present pages stay. Returns the
        pages that appeared. node: a node of a tier. pages: see span()."""
        part = self.nodes[pages]
        found: npt.NDArray[np.int64] = (part == ABSENT).nonzero()[0]
        if len(found):
            part[found] = node
            self.tier_pages[self._tier_of[node]] += len(found)
            found += pages.start
        return found

    def drops(self, pages: slice) -> None:
        """Record that the process dropped the pages. pages: see span()."""
        part = self.nodes[pages]
        self._add(-count for count in self.count(part))
        part[:] = ABSENT

    def _add(self, counts: Iterable[int]) -> None:
        """Add to the number of pages on each tier. counts: one for each tier."""
        for tier, count in enumerate(counts):
            self.tier_pages[tier] += count


class PageMaps:
    """The maps of a session's arena and heap, and sums over them by tier. A space without a range
    has an empty map."""

    def __init__(
        self, tiers: Tiers, ranges: Mapping[Space, tuple[int, int]], page_bytes: int = PAGE_BYTES
    ) -> None:
        self.tiers = tiers
        self.page_bytes = page_bytes
        nodes = [tier.nodes for tier in tiers.tiers]
        self.maps = {
            space: ResidencyMap(*ranges.get(space, (0, 0)), page_bytes, nodes) for space in Space
        }
        # _elsewhere[tier][node]: whether the node is in another tier. `node` is a map's entry, read
        # as an unsigned byte. ABSENT (-1) is thus 255, for which the element is False.
        tier_of = np.full(256, -1, dtype=np.int8)
        self._tier_of = np.full(256, ABSENT_TIER, dtype=np.uint8)
        for index, tier in enumerate(tiers.tiers):
            tier_of[list(tier.nodes)] = self._tier_of[list(tier.nodes)] = index
        self._elsewhere = [(tier_of >= 0) & (tier_of != index) for index in range(len(tiers.tiers))]

    def pages_to_move(
        self, space: Space, offset: int, length_bytes: int, tier: int
    ) -> npt.NDArray[np.int64]:
        """Indices of the range's resident pages that are on another tier. Pages on nodes that
        belong to no tier are left out."""
        residency = self.maps[space]
        span = residency.span(offset, length_bytes)
        pages: npt.NDArray[np.int64]
        pages = self._elsewhere[tier][residency.nodes[span].view(np.uint8)].nonzero()[0]
        pages += span.start
        return pages

    def misplaced(self, table: Table) -> Mask:
        """(N,): which ranges pages_to_move() finds any pages in. table: MOVE_DTYPE, (N,)."""
        found = np.zeros(len(table), np.bool_)
        for space, residency in self.maps.items():
            for tier, elsewhere in enumerate(self._elsewhere):
                rows = np.flatnonzero((table["space"] == space) & (table["tier"] == tier))
                if not len(rows):
                    continue
                begin = table["offset"][rows].astype(np.int64)
                end = begin + table["bytes"][rows].astype(np.int64)
                last = np.minimum(-(-end // self.page_bytes), len(residency.nodes))
                first = np.minimum(begin // self.page_bytes, last)
                # One more page, because reduceat() accepts no index beyond the array. It reduces
                # from each index to the next, or takes a single element if the next is not larger.
                away = np.append(elsewhere[residency.nodes.view(np.uint8)], False)
                pairs = np.stack([first, last], axis=1).ravel()
                found[rows] = np.logical_or.reduceat(away, pairs)[::2] & (last > first)
        return found

    def on_tier(self, status: Status | Nodes, tier: int) -> npt.NDArray[np.bool_]:
        """Whether each status, or entry of a map, is a node of the tier."""
        # Tiers have few nodes, so this takes an eighth of the time that np.isin() takes.
        first, *others = self.tiers.tiers[tier].nodes
        found: npt.NDArray[np.bool_] = status == first
        for node in others:
            found |= status == node
        return found

    def tiers_of(self, nodes: Nodes) -> npt.NDArray[np.uint8]:
        """The tier of each entry of a map; ABSENT_TIER if the page is absent, or on a node of no
        tier."""
        tiers: npt.NDArray[np.uint8] = self._tier_of[nodes.view(np.uint8)]
        return tiers

    def pages_by_tier(self) -> list[int]:
        """Number of pages on each tier."""
        by_space = (residency.tier_pages for residency in self.maps.values())
        return [sum(pages) for pages in zip(*by_space, strict=True)]

    def read(self, memory: Memory) -> dict[Space, list[Part]]:
        """Query all pages of all maps, but leave the maps unchanged; see ResidencyMap.read()."""
        return {space: residency.read(memory) for space, residency in self.maps.items()}

    def replace(self, parts: Mapping[Space, Sequence[Part]]) -> int:
        """Replace these parts of the maps; returns the number of entries that changed."""
        return sum(self.maps[space].replace(of_space) for space, of_space in parts.items())


def _after(before: Nodes, status: Status) -> Nodes:
    """The entries after a move_pages call with these statuses; before: the entries before it."""
    after = status.astype(np.int8)
    if len(status) and status.min() < 0:
        gone = (status == -errno.ENOENT) | (status == -errno.EFAULT)
        after = np.where(status >= 0, after, np.where(gone, np.int8(ABSENT), before))
    return after
