# SPDX-License-Identifier: Apache-2.0
"""Emulated tiers: a process's pages as its residency map has them. Nothing is copied, time passes.

The shim keeps the map where the kernel would keep page tables: it notes births
and drops as they happen, and the map stays when the daemon goes. Moving is
paced: a batch takes the time that the emulated bandwidth gives it, and its
pages stay where they were until then.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from sentineld.migrate.pace import TokenBucket
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.model.plan import Space
from sentineld.model.tiers import Tiers

BATCH_PAGES = 64
"""0.3 ms at a twelfth of 10 GB/s. Who waits for a demotion waits for the batch before it, too: with
batches of 1 MiB a step of lstm waited for 8 ms, with these for 3, as the daemon takes twice the
CPU time."""

Map = npt.NDArray[np.uint8]


class Clock:
    """The machine's; tests have others."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return time.monotonic_ns()

    def sleep(self, duration_ns: int) -> None:
        """May end early by a tick."""
        time.sleep(duration_ns / 1e9)


class EmulatedMemory:
    """maps: for each space its pages' entries (0: absent, else 1 + node), shared with the process.
    spaces: (start, bytes)."""

    exact = True

    def __init__(
        self,
        maps: Mapping[Space, Map],
        spaces: Mapping[Space, tuple[int, int]],
        tiers: Tiers,
        bucket: TokenBucket,
        page_bytes: int = 4096,
        batch_pages: int = BATCH_PAGES,
        moved_fast: Callable[[int], None] = lambda _: None,
        flying_fast: Callable[[int], None] = lambda _: None,
        fast_room: Callable[[], int | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        """moved_fast: hears of each batch how many pages more are on the fast tier. flying_fast:
        hears how many are on their way there, so that no birth takes their room. fast_room: pages
        that the fast tier has beside these, less than none if they are too many."""
        self.batch_pages = batch_pages
        self._tiers = tiers
        self._bucket = bucket
        self._page_bytes = page_bytes
        self._moved_fast = moved_fast
        self._flying_fast, self._fast_room = flying_fast, fast_room
        self._flying_fast(0)  # what a daemon before this one was about to move
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
        """What the map says; pages of which it says nothing are absent."""
        status = np.full(len(pages), -errno.ENOENT, np.int32)
        for inside, entries, index in self._parts(pages):
            found = entries[index]
            # The process may write anything into the map: what is no node is no page.
            there = self._nodes[found]
            status[inside[there]] = found[there].astype(np.int32) - 1
        return status

    def move_pages(self, pages: Addresses, node: int) -> MoveResult:
        """Let the time of a move pass for the pages that are elsewhere, then note where they are.

        A page that the process drops meanwhile stays dropped. What the fast tier has no room for
        stays where it is, and the result's error is ENOMEM.
        """
        before = self.query_pages(pages)
        there = np.flatnonzero((before >= 0) & (before != node))
        moving, wanted = len(there), pages
        if self._fast[node + 1]:
            self._flying_fast(moving)
            lacking = min(max(-(self._fast_room() or 0), 0), moving)
            if lacking:
                # As the kernel does with a full node: the first ones go.
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
        """The tier's first node; its room has no limit but the tier's capacity."""
        found = self._tiers.tiers[tier]
        return found.nodes[0], found.capacity_bytes

    def _parts(
        self, pages: Addresses
    ) -> list[tuple[npt.NDArray[np.int64], Map, npt.NDArray[np.int64]]]:
        """For each space with any of the pages: which of them, its map, their indices there."""
        addresses = pages.astype(np.int64)
        parts = []
        for start, end, entries in self._spaces:
            inside = np.flatnonzero((addresses >= start) & (addresses < end))
            if len(inside):
                index = (addresses[inside] - start) // self._page_bytes
                parts.append((inside, entries, index))
        return parts
