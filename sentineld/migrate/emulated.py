# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: a process's pages are entries of a residency map; moves take time but copy
nothing.

The map takes the place of page tables: the shim records births and drops in the map, and the map
outlives the daemon. Moves are paced: a batch takes as long as its bytes need at the emulated
bandwidth, and its pages stay on their source node until that time has passed.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers

BATCH_PAGES = 64
"""A batch of 64 pages takes 0.3 ms at 0.83 GB/s. A process that waits for a demotion also waits for
the batch in flight: a step of the benchmark model lstm waits 8 ms with batches of 1 MiB, and 3 ms
with batches of 64 pages. The smaller batches double the daemon's CPU time."""

Map = npt.NDArray[np.uint8]


class Clock:
    """The machine's clock; tests replace it with a virtual clock."""

    def now_ns(self) -> int:
        """Return CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def sleep(self, duration_ns: int) -> None:
        """Sleep; may return a clock tick early."""
        time.sleep(duration_ns / 1e9)


class EmulatedMemory:
    """A process's pages in the residency map; see Memory."""

    exact = True
    waits = True

    def __init__(
        self,
        maps: Mapping[Space, Map],
        spaces: Mapping[Space, tuple[int, int]],
        tiers: Tiers,
        bucket: TokenBucket,
        page_bytes: int = PAGE_BYTES,
        batch_pages: int = BATCH_PAGES,
        moved_fast: Callable[[int], None] = lambda _: None,
        in_flight_fast: Callable[[int], None] = lambda _: None,
        fast_room: Callable[[], int | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """maps: the entry of each page of a space (0: absent, else 1 + node); shared memory.
        spaces: (start, bytes) of each space.
        moved_fast: called after each batch with the change of the number of fast pages.
        in_flight_fast: called with the number of pages in flight to the fast tier; their room is
        reserved, so that no birth takes it.
        fast_room: returns the number of the fast tier's free pages minus the pages in flight to
        that tier; the difference may be negative. None: unlimited."""
        self.batch_pages = batch_pages
        self._tiers = tiers
        self._bucket = bucket
        self._page_bytes = page_bytes
        self._moved_fast = moved_fast
        self._flying_fast, self._fast_room = in_flight_fast, fast_room
        self._flying_fast(0)  # clears the count that an earlier daemon left
        self._clock = clock or Clock()
        self._nodes, self._fast = np.zeros((2, 256), np.bool_)
        for tier in tiers.tiers:
            self._nodes[[node + 1 for node in tier.nodes]] = True
        self._fast[[node + 1 for node in tiers.tiers[0].nodes]] = True
        self._spaces = [
            (start, start + min(size, len(maps[space]) * page_bytes), maps[space])
            for space, (start, size) in spaces.items()
        ]

    def query_pages(self, pages: Addresses) -> Status:
        """Read the map; pages outside it are absent."""
        status = np.full(len(pages), -errno.ENOENT, np.int32)
        for inside, entries, index in self._parts(pages):
            found = entries[index]
            # The process can write any value into the map, so invalid nodes count as absent.
            there = self._nodes[found]
            status[inside[there]] = found[there].astype(np.int32) - 1
        return status

    def move_pages(self, pages: Addresses, node: int) -> MoveResult:
        """Wait as long as the move takes, then set the pages' entries.

        A page that the process drops during the move stays absent. Pages for which the fast tier
        has no room stay where they are; the result's error is then ENOMEM.
        """
        before = self.query_pages(pages)
        there = np.flatnonzero((before >= 0) & (before != node))
        moving, wanted = len(there), pages
        if self._fast[node + 1]:
            self._flying_fast(moving)
            lacking = min(max(-(self._fast_room() or 0), 0), moving)
            if lacking:
                # Move the first pages only, as the kernel does when the node becomes full.
                moving -= lacking
                self._flying_fast(moving)
                wanted = np.delete(pages, there[moving:])
        end_ns = self._bucket.take(moving * self._page_bytes, self._clock.now_ns())
        while (left_ns := end_ns - self._clock.now_ns()) > 0:
            self._clock.sleep(left_ns)
        for _, entries, index in self._parts(wanted):
            there = index[self._nodes[entries[index]]]
            were_fast = int(np.count_nonzero(self._fast[entries[there]]))
            entries[there] = node + 1
            self._moved_fast(len(there) * bool(self._fast[node + 1]) - were_fast)
        self._flying_fast(0)
        full = len(wanted) < len(pages)
        return MoveResult(self.query_pages(pages), errno.ENOMEM if full else 0)

    def best_node(self, tier: int) -> tuple[int, int]:
        """Return the tier's first node, and the tier's capacity as its room."""
        found = self._tiers.tiers[tier]
        return found.nodes[0], found.capacity_bytes

    def close(self) -> None:
        """Forget the maps, so that they are unmapped."""
        self._spaces = []

    def _parts(
        self, pages: Addresses
    ) -> list[tuple[npt.NDArray[np.int64], Map, npt.NDArray[np.int64]]]:
        """(indices into `pages`, map, indices into the map) for each space that has some of the
        pages."""
        addresses = pages.astype(np.int64)
        parts = []
        for start, end, entries in self._spaces:
            inside = np.flatnonzero((addresses >= start) & (addresses < end))
            if len(inside):
                index = (addresses[inside] - start) // self._page_bytes
                parts.append((inside, entries, index))
        return parts
