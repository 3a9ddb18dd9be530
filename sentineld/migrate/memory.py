# SPDX-License-Identifier: Apache-2.0
"""What the mover needs of a process's memory: where pages are, moving them, room for them.

Two implementations: the kernel's pages (here) and those of emulated tiers
(emulated.py). Everything above, from the schedule to the accounts, is the same.
"""

from __future__ import annotations

from typing import Protocol

from sentineld.migrate.capacity import Capacity
from sentineld.migrate.syscalls import BATCH_PAGES, Addresses, MoveResult, Status
from sentineld.migrate.syscalls import move_pages as kernel_move_pages
from sentineld.migrate.syscalls import query_pages as kernel_query_pages
from sentineld.model.tiers import Tiers


class Memory(Protocol):
    """One process's pages. batch_pages: how many to move at once; a page in flight is where it
    was until its batch is done. exact: a batch takes what its bytes take, however few."""

    batch_pages: int
    exact: bool

    def query_pages(self, pages: Addresses) -> Status:
        """Node of each page, or -ENOENT. Raises ProcessLookupError when the process is gone."""

    def move_pages(self, pages: Addresses, node: int) -> MoveResult:
        """Move distinct pages to a node; blocks. Raises ProcessLookupError, SentinelError."""

    def best_node(self, tier: int) -> tuple[int, int]:
        """The tier's node with the most room, and its room in bytes."""


class KernelMemory:
    """A process's pages as the kernel knows them."""

    exact = False

    def __init__(self, pid: int, tiers: Tiers, batch_pages: int = BATCH_PAGES) -> None:
        self.batch_pages = batch_pages
        self._pid = pid
        self._capacity = Capacity(tiers)

    def query_pages(self, pages: Addresses) -> Status:
        """Ask the kernel."""
        return kernel_query_pages(self._pid, pages)

    def move_pages(self, pages: Addresses, node: int) -> MoveResult:
        """Have the kernel move them."""
        return kernel_move_pages(self._pid, pages, node, self.batch_pages)

    def best_node(self, tier: int) -> tuple[int, int]:
        """By free memory."""
        return self._capacity.best_node(tier)
