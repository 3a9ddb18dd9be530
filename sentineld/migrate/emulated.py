# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: a process's pages are entries of a residency map; moves take time but copy
nothing.

The map takes the place of page tables: the shim records births and drops in the map, and the map
outlives the daemon. Moves are paced: a batch takes as long as its bytes need at the emulated
bandwidth, and its pages stay on their source node until that time has passed. A batch that is
interrupted has moved as many of its pages as the bandwidth allowed until then.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sentineld.migrate.clock import Clock
from sentineld.migrate.process_memory import Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers

BATCH_PAGES = 512
"""Maximum number of pages in a batch. Larger batches would take less CPU time in total, because the
CPU time of a batch hardly depends on its size. But the pages of a batch arrive only at its end:
after 2.5 ms at 0.83 GB/s, or at the next boundary, which interrupts the batch."""
SMALL_BATCH_PAGES = 64
"""A batch is at most this large if it has pages of several moves or of an urgent promotion (see
batches.py), or if other processes' pages are moving. A batch of this size takes 0.3 ms at 0.83
GB/s."""

Map = npt.NDArray[np.uint8]


class _Part(NamedTuple):
    """The pages of a query or move that lie in one space."""

    inside: npt.NDArray[np.int64] | slice
    """The pages' indices in the query or move."""
    entries: Map
    """The map of the space."""
    where: npt.NDArray[np.int64]
    """The pages' indices into the map."""


class EmulatedMemory:
    """A process's pages in the residency map; see Memory."""

    batch_pages = BATCH_PAGES
    small_batch_pages = SMALL_BATCH_PAGES
    exact = True
    waits = True

    def __init__(
        self,
        maps: Mapping[Space, Map],
        spaces: Mapping[Space, tuple[int, int]],
        tiers: Tiers,
        bucket: TokenBucket,
        page_bytes: int = PAGE_BYTES,
        moved_fast: Callable[[int], None] = lambda _: None,
        in_flight_fast: Callable[[int], None] = lambda _: None,
        fast_room: Callable[[], int | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """maps: the entry of each page of a space (0: absent, else 1 + node); shared memory.
        spaces: (start, bytes) of each space.
        moved_fast: called after each batch with the change in the number of fast pages.
        in_flight_fast: called with the number of pages in flight to the fast tier; their room is
        reserved, so that no birth takes it.
        fast_room: returns the number of the fast tier's free pages minus the pages in flight to
        that tier; the difference may be negative. None: unlimited."""
        self._tiers = tiers
        self._bucket = bucket
        self._page_bytes = page_bytes
        self._moved_fast = moved_fast
        self._flying_fast, self._fast_room = in_flight_fast, fast_room
        self._flying_fast(0)  # clears the count that an earlier daemon left
        self._clock = clock or Clock()
        self._wanted_ns = 0
        self._nodes, self._fast = np.zeros((2, 256), np.bool_)
        # The process can write any value into the map, so invalid nodes count as absent.
        self._statuses = np.full(256, -errno.ENOENT, np.int32)
        for tier in tiers.tiers:
            for node in tier.nodes:
                self._nodes[node + 1] = True
                self._statuses[node + 1] = node
        self._fast[[node + 1 for node in tiers.tiers[0].nodes]] = True
        self._spaces = [
            (start, start + min(size, len(maps[space]) * page_bytes), maps[space])
            for space, (start, size) in spaces.items()
        ]

    def query_pages(self, pages: Addresses) -> Status:
        """Read the map; pages outside it are absent."""
        return self._status(self._parts(pages), len(pages))

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        """Wait as long as the move takes, then set the pages' entries.

        A page that the process drops during the move stays absent, and a page that is born during
        the move stays where it is born. Pages for which the fast tier has no room stay where they
        are; the result's error is then ENOMEM. A move that `wait` interrupts ends with EINTR. If
        other processes' pages are moving, the move waits for its turn and then moves at most
        small_batch_pages pages; if more pages are left, it also ends with EINTR.
        """
        parts = self._parts(pages)
        before = self._status(parts, len(pages))
        elsewhere = ((before >= 0) & (before != node)).nonzero()[0]
        fitting = len(elsewhere)
        if self._fast[node + 1]:
            self._flying_fast(fitting)
            lacking = min(max(-(self._fast_room() or 0), 0), fitting)
            if lacking:
                # Move the first pages only, as the kernel does when the node becomes full.
                fitting -= lacking
                self._flying_fast(fitting)
        arrived = self._pace(fitting, wait)
        moved = np.zeros(len(pages), np.bool_)
        moved[elsewhere[:arrived]] = True
        for inside, entries, where in parts:
            there = where[moved[inside]]
            there = there[self._nodes[entries[there]]]
            were_fast = int(np.count_nonzero(self._fast[entries[there]]))
            entries[there] = node + 1
            self._moved_fast(len(there) * bool(self._fast[node + 1]) - were_fast)
        self._flying_fast(0)
        error = errno.ENOMEM if fitting < len(elsewhere) else 0
        if arrived < fitting:
            error = errno.EINTR
        return MoveResult(self._status(parts, len(pages)), error)

    def begin_series(self, since_ns: int) -> None:
        """Forfeit the bandwidth that was not used before since_ns; see TokenBucket.take()."""
        self._wanted_ns = since_ns

    def best_node(self, tier: int) -> tuple[int, int]:
        """Return the tier's first node, and the tier's capacity as its room."""
        found = self._tiers.tiers[tier]
        return found.nodes[0], found.capacity_bytes

    def close(self) -> None:
        """Forget the maps, so that they are unmapped."""
        self._spaces = []

    def _pace(self, pages: int, wait: Wait | None) -> int:
        """Wait as long as the move of some pages takes; returns how many of them have arrived."""
        # Wait until earlier moves have ended before reserving bandwidth. Otherwise, reservations
        # would queue up: after an interrupted move, no page would move until the time that is
        # reserved for the next move.
        page_bytes = self._page_bytes
        while (busy_ns := self._bucket.busy_ns(self._clock.now_ns(), page_bytes)) > 0:
            pages = min(pages, self.small_batch_pages)
            if self._sleep(busy_ns, wait):
                return 0
        now_ns = self._clock.now_ns()
        end_ns = self._bucket.take(pages * page_bytes, now_ns, self._wanted_ns)
        while (left_ns := end_ns - self._clock.now_ns()) > 0:
            if self._sleep(left_ns, wait):
                left_ns = end_ns - self._clock.now_ns()
                return pages - self._bucket.give_back(pages, page_bytes, left_ns)
        return pages

    def _sleep(self, duration_ns: int, wait: Wait | None) -> bool:
        """Sleep; returns early, with True, if the move has to end."""
        if wait is not None:
            return wait(duration_ns)
        self._clock.sleep(duration_ns)
        return False

    def _status(self, parts: list[_Part], count: int) -> Status:
        status = np.full(count, -errno.ENOENT, np.int32)
        for inside, entries, where in parts:
            status[inside] = self._statuses[entries[where]]
        return status

    def _parts(self, pages: Addresses) -> list[_Part]:
        addresses = pages.astype(np.int64)
        first, last = (addresses.min(), addresses.max()) if len(pages) else (0, -1)
        parts = []
        for start, end, entries in self._spaces:
            if start <= first and last < end:
                where = (addresses - start) // self._page_bytes
                return [_Part(slice(None), entries, where)]
            inside = ((addresses >= start) & (addresses < end)).nonzero()[0]
            if len(inside):
                where = (addresses[inside] - start) // self._page_bytes
                parts.append(_Part(inside, entries, where))
        return parts
