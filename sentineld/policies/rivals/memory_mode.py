# SPDX-License-Identifier: Apache-2.0
"""Hardware `memory-mode`: fast memory as a direct-mapped cache of slow memory.

The cache follows Optane's memory mode (two-level memory; Izraelevitz et al., arXiv 1903.05714).
Programs see only slow memory, and each line of slow memory maps to one line of the cache. When a
read or a write misses, the cache line is filled from slow memory; when a dirty line is evicted, it
is written back to slow memory. The hardware does not distinguish tensors: lines of dead tensors are
written back, too.

Simplifications, all of which favour memory mode:

- A line is a 4 KiB page, not 64 bytes. Training accesses its tensors sequentially, so it uses all
  64-byte lines of a page.
- Physical pages are contiguous as in the layout, so that pages do not conflict by chance.
- A hit takes no longer than an access on a machine whose whole memory is fast.
- Each page of a tensor misses at most once in a stretch.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import CACHED_BYTES, timing_of
from sentineld.plan.items import tensor_pages
from sentineld.plan.policy import HardwareStep
from sentineld.plan.residency import places
from sentineld.policies.baselines import Baseline
from sentineld.policies.registry import register

TURNS_MAX = 50
"""Limit on the number of simulated steps. After two or three steps, the cache is usually in the
same state at the end of a step as at its beginning."""


@register()
class MemoryMode:
    """Hardware `memory-mode`; see the module's docstring. The size of the cache is the budget."""

    name = "memory-mode"
    charges_budget = False

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Lay out the step; the hardware decides which pages are cached."""
        reason = "where the hardware's cache holds it"
        return Baseline(self.name, 1, reason).plan(profile, tiers, budget_bytes)

    def steady_step(
        self, plan: Plan, profile: Profile, tiers: Tiers, budget_bytes: int
    ) -> HardwareStep:
        """Simulate the cache until steps repeat; see Hardware."""
        first = _first_pages(plan, profile)
        pages = tensor_pages(profile)
        cache = _Cache(max(budget_bytes // profile.page_bytes, 1))
        rows = profile.accesses
        size_bytes = profile.tensors["bytes"][rows["tensor"]]
        rows = rows[size_bytes >= CACHED_BYTES]
        filled, written_back = np.zeros((2, profile.stretch_count))
        for _ in range(TURNS_MAX):
            before = cache.state()
            filled, written_back = np.zeros((2, profile.stretch_count))
            for row in rows:
                tensor = int(row["tensor"])
                size = int(max(row["bytes_read"], row["bytes_written"]))
                touched = -(-size // profile.page_bytes)
                fills, backs = cache.access(
                    int(first[tensor]),
                    min(max(touched, 1), int(pages[tensor])),
                    bool(row["bytes_written"]),
                )
                filled[row["stretch"]] += fills
                written_back[row["stretch"]] += backs
            if cache.state() == before:
                break
        slow = tiers.tiers[1]
        filled, written_back = filled * profile.page_bytes, written_back * profile.page_bytes
        extra_ns = np.zeros(profile.stretch_count)
        for sizes, rate in (
            (filled, slow.read_bytes_per_s),
            (written_back, slow.write_bytes_per_s),
        ):
            if rate > 0:
                extra_ns += sizes * 1e9 / rate
        # Only fills and write-backs access slow memory. The program itself accesses only the cache,
        # so its work takes the all-fast time. In each stretch, up to hidden_ns of the time of fills
        # and write-backs overlaps with this work (see AccessCosts in model/timing.py).
        hidden_ns = timing_of(tiers).costs(profile).hidden_ns
        shown_ns = float(np.maximum(extra_ns - hidden_ns, 0.0).sum())
        return HardwareStep(shown_ns, int(filled.sum()), int(written_back.sum()))


class _Cache:
    """A direct-mapped, write-back cache."""

    def __init__(self, lines: int) -> None:
        self._page = np.full(lines, -1, np.int64)  # page in each line; -1: none
        self._dirty = np.zeros(lines, np.bool_)

    def access(self, first: int, pages: int, writes: bool) -> tuple[int, int]:
        """Access contiguous pages; returns (lines filled, lines written back)."""
        filled = written_back = 0
        lines = len(self._page)
        for begin in range(first, first + pages, lines):
            page = np.arange(begin, min(begin + lines, first + pages))
            place = page % lines
            missed = self._page[place] != page
            filled += int(np.count_nonzero(missed))
            written_back += int(np.count_nonzero(missed & self._dirty[place]))
            self._dirty[place] = writes | (self._dirty[place] & ~missed)
            self._page[place] = page
        return filled, written_back

    def state(self) -> bytes:
        """The complete state of the cache, for comparison."""
        return self._page.tobytes() + self._dirty.tobytes()


def _first_pages(plan: Plan, profile: Profile) -> Integers:
    """(T,): the number of each tensor's first page. The pages of the arena are numbered first, then
    those of the heap, then those of all other tensors."""
    space, offset = places(plan, profile)
    start, pages = offset // profile.page_bytes, tensor_pages(profile)
    heap = -(-plan.layout.arena_bytes // profile.page_bytes)
    beyond = heap + int((start + pages)[space == Space.HEAP].max(initial=0))
    loose = space < 0
    begin = beyond + np.cumsum(np.where(loose, pages, 0)) - pages
    found: Integers = np.where(loose, begin, start + np.where(space == Space.HEAP, heap, 0))
    return found
