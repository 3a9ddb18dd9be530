# SPDX-License-Identifier: Apache-2.0
"""The mover's interface to a process's pages: query, move, and the room of a tier.

The interface has three implementations: for the kernel's pages (KernelMemory), for emulated tiers
(emulated.py) and for paged tiers (paged.py). The mover (mover.py) uses only this interface.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Protocol

import numpy as np

from sentineld.migrate.node_capacity import Capacity
from sentineld.migrate.syscalls import BATCH_PAGES, Addresses, MoveResult, Status
from sentineld.migrate.syscalls import move_pages as kernel_move_pages
from sentineld.migrate.syscalls import query_pages as kernel_query_pages
from sentineld.model.records import PAGE_BYTES
from sentineld.model.tiers import Tiers

Wait = Callable[[int], bool]
"""Waits for at most the given number of nanoseconds. Returns early, with True, if the move under
way has to end."""


class Memory(Protocol):
    """One process's pages. A page in flight counts as being on its source node; on paged tiers, as
    being in the file."""

    batch_pages: int
    """Largest number of pages to move in one call."""
    ahead_pages: int
    """Largest number of pages to demote ahead of time (before the move's planned boundary) in one
    call while promotions are queued."""
    exact: bool
    """Whether the time to move a batch is exactly its bytes / bandwidth, without overhead."""
    waits: bool
    """Whether move_pages() returns only when the move is done. The call then takes as long as the
    move."""

    def query_pages(self, pages: Addresses) -> Status:
        """Return the status of each page: its node, or a negative number (see MoveResult.status).

        Raises ProcessLookupError if the process is gone, SentinelError if the kernel refuses.
        """

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        """Move distinct pages to a node; if `waits`, blocks until the move is done.

        wait: called by implementations that only imitate moves, to wait for the move's end. If it
        returns True, the move ends early: pages that have not arrived by then stay where they are,
        and the result's error is EINTR.
        Raises ProcessLookupError if the process is gone, SentinelError if the kernel refuses.
        """

    def begin_series(self, since_ns: int) -> None:
        """Called before a series of moves. There was nothing to move until since_ns
        (CLOCK_MONOTONIC), so an implementation that limits the bandwidth must not make up for
        the bandwidth that was unused before since_ns."""

    def best_node(self, tier: int) -> tuple[int, int]:
        """Return the tier's node with the most room, and its room in bytes."""

    def close(self) -> None:
        """Release the resources of this object. No page may be moved with it afterwards."""


class KernelMemory:
    """A process's pages on the kernel's NUMA nodes."""

    exact = False
    waits = True

    def __init__(self, pid: int, tiers: Tiers, batch_pages: int = BATCH_PAGES) -> None:
        self.batch_pages = self.ahead_pages = batch_pages
        self._pid = pid
        self._capacity = Capacity(tiers)

    def query_pages(self, pages: Addresses) -> Status:
        """Query the nodes with move_pages(2)."""
        return kernel_query_pages(self._pid, pages)

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        """Move the pages with move_pages(2)."""
        result = kernel_move_pages(self._pid, pages, node, self.batch_pages)
        if result.error == errno.ENOMEM:
            self._capacity.forget(node)
        else:
            moved_pages = int(np.count_nonzero(result.status == node))
            self._capacity.moved(node, moved_pages * PAGE_BYTES)
        return result

    def begin_series(self, since_ns: int) -> None:
        """Do nothing: this class does not limit the bandwidth of moves."""

    def best_node(self, tier: int) -> tuple[int, int]:
        """Compare the room of the tier's nodes; see Capacity.best_node()."""
        return self._capacity.best_node(tier)

    def close(self) -> None:
        """Do nothing: this class holds no resources."""
