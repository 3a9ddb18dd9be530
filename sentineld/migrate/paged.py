# SPDX-License-Identifier: Apache-2.0
"""Paged tiers: requests to the process's pager, which moves the pages.

UFFDIO_MOVE works within one address space, so the process itself moves its pages
(sentineld/shim/native/pager/). The pager begins the queued moves one after the other, without
waiting for the file accesses of earlier moves. The pager's page frames exceed the budget only if no
page can be evicted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sentineld.migrate.process_memory import Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status, page_ranges
from sentineld.model.arrays import Integers
from sentineld.model.plan import Space
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers
from sentineld.observe.paging_segment import PagingCounts, PagingSegment
from sentineld.observe.residency_segment import ResidencySegment
from sentineld.plan.residency import ABSENT

BATCH_PAGES = 2048
QUEUED_RANGES_MAX = 16
"""While this many ranges wait to be fetched, the fast tier counts as full. A fetch that is queued
later cannot overtake them, so a long queue would delay it."""
ROOM_WAIT_S = 1.0
"""Longest wait for room in the queue of evictions. While the pager empties this queue, it waits
only for the disk, so if the queue stays full, the process may have stopped or ended."""
ROOM_POLL_S = 0.001


class PagedMemory:
    """A process's pages under its pager; see Memory."""

    exact = False
    waits = False

    def __init__(
        self,
        segment: ResidencySegment,
        paging: PagingSegment,
        spaces: Mapping[Space, tuple[int, int]],
        tiers: Tiers,
        wake_fd: int,
        page_bytes: int = PAGE_BYTES,
        sleep: Callable[[float], None] = time.sleep,
        heap_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """segment: the residency map, which the pager writes.
        paging: the queues of evictions and fetches, in the same shared memory as the map.
        spaces: (start, bytes) of the arena and of the used part of the heap.
        wake_fd: see ShimLink; this object duplicates it.
        heap_bytes: returns the bytes of the heap that are in use now. They can become more than
            those in `spaces`."""
        self.batch_pages = self.ahead_pages = BATCH_PAGES
        self._segment, self._paging = segment, paging
        self._spaces, self._tiers = dict(spaces), tiers
        self._wake_fd = os.dup(wake_fd)
        self._page_bytes = page_bytes
        self._sleep = sleep
        self._heap_bytes = heap_bytes

    def query_pages(self, pages: Addresses) -> Status:
        """Read the map; a page in transit to or from the file counts as being in the file."""
        status: Status = np.full(len(pages), -errno.ENOENT, np.int32)
        for space, inside, index in self._parts(pages):
            entries = self._segment.maps[space]
            known = index < len(entries)
            found = entries[index[known]].astype(np.int32) - 1
            status[inside[known]] = np.where(found < 0, -errno.ENOENT, found)
        return status

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        """Queue the moves; the statuses are those that the pages will have after the moves.

        Evictions wait for room in the queue, up to ROOM_WAIT_S; promotions do not wait. Pages for
        which the queue has no room stay where they are, with status -EBUSY.
        """
        status = self.query_pages(pages)
        evict = node != self._tiers.tiers[0].nodes[0]
        resident = status >= 0
        for space, inside, index in self._parts(pages):
            left = self._append(evict, space, page_ranges(index[resident[inside]], 1))
            if left:
                resident[inside[np.isin(index, _pages_of(left))]] = False
        self._wake()
        stuck = (status >= 0) & ~resident
        status[resident] = node
        status[stuck] = -errno.EBUSY
        return MoveResult(status, 0)

    def begin_series(self, since_ns: int) -> None:
        """Do nothing: the pager moves pages as soon as it can."""

    def best_node(self, tier: int) -> tuple[int, int]:
        """Return the tier's node, and the tier's capacity as the node's room. The fast tier has no
        room while QUEUED_RANGES_MAX or more ranges wait to be fetched."""
        found = self._tiers.tiers[tier]
        full = tier == 0 and self._paging.queued(evict=False) >= QUEUED_RANGES_MAX
        return found.nodes[0], 0 if full else found.capacity_bytes

    def counts(self) -> PagingCounts:
        """The pager's counters."""
        return self._paging.counts()

    def bytes_by_tier(self) -> list[int]:
        """Bytes in memory and in the file, according to the map."""
        return [
            sum(
                int(np.count_nonzero(entries == 1 + tier.nodes[0])) * self._page_bytes
                for entries in self._used().values()
            )
            for tier in self._tiers.tiers
        ]

    def page_tiers(self) -> dict[Space, npt.NDArray[np.uint8]]:
        """For arena and heap, the tier of each page; ABSENT if the page is absent."""
        tier_of = np.full(256, ABSENT, np.uint8)
        for index, tier in enumerate(self._tiers.tiers):
            tier_of[1 + tier.nodes[0]] = index
        return {space: tier_of[entries] for space, entries in self._used().items()}

    def misplaced(self, space: Space, offset: int, length_bytes: int, tier: int) -> Addresses:
        """Addresses of the range's pages that are on another tier; absent pages are left out."""
        first, last = offset // self._page_bytes, -(-(offset + length_bytes) // self._page_bytes)
        entries = self._segment.maps[space][first:last]
        here = (entries != 0) & (entries != 1 + self._tiers.tiers[tier].nodes[0])
        pages = (np.flatnonzero(here) + first).astype(np.uint64)
        found: Addresses = np.uint64(self._spaces[space][0]) + pages * np.uint64(self._page_bytes)
        return found

    def close(self) -> None:
        """Close this object's descriptor."""
        os.close(self._wake_fd)

    def _used(self) -> dict[Space, npt.NDArray[np.uint8]]:
        """The entries of the arena and of the used heap. The maps can be longer: the heap's map
        covers its reserved address space, and the process chooses the length of both maps. A read
        of the other entries would take memory for pages of the map that the process never wrote."""
        used = {}
        for space, entries in self._segment.maps.items():
            _, size = self._spaces.get(space, (0, 0))
            if space == Space.HEAP:
                size = max(size, self._heap_bytes())
            used[space] = entries[: -(-size // self._page_bytes)]
        return used

    def _append(
        self, evict: bool, space: Space, ranges: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Queue the ranges; returns those for which there was no room."""
        left = self._paging.append(evict, space, ranges)
        waited_s = 0.0
        while left and evict and waited_s < ROOM_WAIT_S:
            self._wake()
            self._sleep(ROOM_POLL_S)
            waited_s += ROOM_POLL_S
            left = self._paging.append(evict, space, left)
        return left

    def _wake(self) -> None:
        """Wake the pager. The write fails if the process has filled the eventfd's counter, but then
        the pager is already being woken."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wake_fd, 1)

    def _parts(self, pages: Addresses) -> list[tuple[Space, Integers, Integers]]:
        """(space, indices into `pages`, indices into the space's map) for each space that has some
        of the pages."""
        addresses = pages.astype(np.int64)
        parts = []
        for space, (start, size) in self._spaces.items():
            inside = np.flatnonzero((addresses >= start) & (addresses < start + size))
            if len(inside):
                parts.append((space, inside, (addresses[inside] - start) // self._page_bytes))
        return parts


def _pages_of(ranges: list[tuple[int, int]]) -> Integers:
    """The pages of all ranges. ranges: (first page, number of pages) of each; not empty."""
    pages: Integers = np.concatenate([np.arange(page, page + n) for page, n in ranges])
    return pages
