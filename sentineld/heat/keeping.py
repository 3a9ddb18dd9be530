# SPDX-License-Identifier: Apache-2.0
"""Keeps the resident memory of a session's processes within its budget."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sentineld.base.units import format_bytes
from sentineld.heat.memory import SessionMemory
from sentineld.heat.paging_out import PagingOut, split
from sentineld.model.records import PAGE_BYTES, PAGE_RUN_DTYPE
from sentineld.policies.temperature.heat import Heat, excess_pages, room_pages

WALK_SHARE = 0.25
"""Limit on the CPU time of reading page tables between two scans, as a share of one core."""
WITHIN = "the resident memory is within the budget"
_NO_RUNS = np.zeros(0, PAGE_RUN_DTYPE)


class Keeping:
    """Pages out the coldest units while the processes exceed the budget.

    All methods that read or move memory raise SentinelError or OSError, or ProcessLookupError if
    the target is a single process that is gone.
    """

    def __init__(
        self,
        memory: SessionMemory,
        heat: Heat,
        paging_out: PagingOut,
        stopped: Callable[[], bool],
    ) -> None:
        """stopped: returns whether the session is about to end; page-outs and prefetches then
        end early."""
        self._memory = memory
        self._heat = heat
        self._paging_out = paging_out
        self._stopped = stopped
        self._unlisted_pages = 0
        """Resident pages that are in no unit, such as locked ones, at the last walk."""
        self._next_walk_s = 0.0
        self._to_fetch = _NO_RUNS
        """Runs of pages to prefetch as soon as the bandwidth permits. Each walk discards them."""
        self._exhausted = False  # true: no page of the units can be paged out until the next scan
        self.paged_out_bytes = 0
        self.prefetched_bytes = 0
        self.returned_bytes = 0

    def walk(self, resize: bool = False) -> None:
        """Read the page tables. resize: see SessionMemory.units()."""
        began_s = time.thread_time()
        mapped_bytes = self._memory.resident_bytes() + self._memory.repeated_bytes
        returned = self._heat.renew(self._memory.units(resize))
        self.returned_bytes += returned * PAGE_BYTES
        resident = (mapped_bytes - self._memory.repeated_bytes) // PAGE_BYTES
        self._unlisted_pages = resident - self._listed_pages
        took_s = time.thread_time() - began_s
        self._next_walk_s = time.monotonic() + took_s / WALK_SHARE
        self._to_fetch = _NO_RUNS
        self._exhausted = False

    @property
    def unlisted_bytes(self) -> int:
        """Resident memory that was in no unit at the last walk, so it cannot be paged out."""
        return max(self._unlisted_pages, 0) * PAGE_BYTES

    @property
    def _listed_pages(self) -> int:
        return int(self._heat.units.resident.sum())

    def keep(self, resident_bytes: int, budget_bytes: int) -> str:
        """Page out if the budget is exceeded, otherwise prefetch, as far as the bandwidth permits.
        Returns a description of the state for the session's status; empty if there is nothing
        new."""
        resident, budget = resident_bytes // PAGE_BYTES, budget_bytes // PAGE_BYTES
        excess = excess_pages(resident, budget)
        if not excess:
            self._prefetch(room_pages(resident, budget))
            return WITHIN
        if self._exhausted:
            return ""
        # Pages that have come into memory since the last walk are in no unit yet. If there are many
        # of them, read the page tables first: otherwise, hot units would be paged out in their
        # place.
        unknown = abs(resident - self._listed_pages - self._unlisted_pages)
        if 2 * unknown > excess or not self._memory.sharing_known:
            if time.monotonic() < self._next_walk_s:
                return ""
            self.walk()
            # Read the size again: if the group had changed before the walk, the argument
            # `resident_bytes` counts shared pages once for each process.
            resident = self._memory.resident_bytes() // PAGE_BYTES
            excess = excess_pages(resident, budget)
            if not excess:
                return WITHIN
            if not self._memory.sharing_known:
                return ""  # the group has changed since this walk
        granted = self._paging_out.grant(self._paging_out.within_swap(excess))
        if not granted:
            return self._paging_out.problem
        runs = self._heat.to_page_out(granted)
        if not len(runs):
            self._exhausted = True
            return (
                f"{format_bytes(excess * PAGE_BYTES)} above the budget cannot be paged out: the "
                "memory is locked, or several processes map it since a fork, or a cgroup limits "
                "swap"
            )
        self._paging_out.page_out(runs, self._stopped)
        asked = np.unique(runs["page"] // self._heat.units.size_pages)
        gone = self._heat.paged_out(asked, self._memory.runs_of(asked))
        self.paged_out_bytes += gone * PAGE_BYTES
        return self._paging_out.problem

    def _prefetch(self, room: int) -> None:
        found = self._heat.to_fetch(room)
        if len(found):
            self._to_fetch = found
        wanted = min(int(self._to_fetch["pages"].sum()), room)
        granted = self._paging_out.grant(wanted) if wanted else 0
        if granted:
            runs, self._to_fetch = split(self._to_fetch, granted)
            self._heat.fetched(runs)
            self._paging_out.fetch(runs, self._stopped)
            self.prefetched_bytes += granted * PAGE_BYTES
