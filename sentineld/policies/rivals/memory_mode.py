# SPDX-License-Identifier: Apache-2.0
"""Hardware `memory-mode`: fast memory as a direct-mapped cache of the slow one.

After Optane's memory mode (two-level memory; Izraelevitz et al., arXiv
1903.05714) and the flat mode's ancestors: programs see the slow memory alone; each of
its lines has one place in the cache. A miss fills the line, whether it is read
or written, by a slow read; a dirty line that has to go is written back by a slow
write. The hardware knows nothing of tensors: dead ones are written back, too.

What is simplified, all in its favour: lines are pages of 4 KiB, not 64 bytes (a
training streams through its tensors); physical pages follow each other as
the layout's do, so that nothing collides by chance; hits cost nothing more than all-fast
memory, and within a stretch a tensor misses once.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import CACHED_BYTES
from sentineld.plan.items import tensor_pages
from sentineld.plan.policy import HardwareStep
from sentineld.plan.residency import places
from sentineld.policies.baselines import Baseline
from sentineld.policies.registry import register

TURNS_MAX = 50
"""Steps until the cache is at a step's end as it was at its begin; two or three are enough."""


@register()
class MemoryMode:
    """The cache. Its size is the budget."""

    name = "memory-mode"
    charges_budget = False

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """A layout; where the pages are is the hardware's own affair."""
        reason = "wherever the hardware's cache has it"
        return Baseline(self.name, 1, reason).plan(profile, tiers, budget_bytes)

    def steady_step(
        self, plan: Plan, profile: Profile, tiers: Tiers, budget_bytes: int
    ) -> HardwareStep:
        """Fills and write-backs of a step; see HardwareStep."""
        first = _first_pages(plan, profile)
        pages = tensor_pages(profile)
        cache = _Cache(max(budget_bytes // profile.page_bytes, 1))
        rows = profile.accesses[
            profile.tensors["bytes"][profile.accesses["tensor"]] >= CACHED_BYTES
        ]
        filled = written_back = 0
        for _ in range(TURNS_MAX):
            before = cache.state()
            filled = written_back = 0
            for row in rows:
                tensor = int(row["tensor"])
                size = int(max(row["bytes_read"], row["bytes_written"]))
                touched = -(-size // profile.page_bytes)
                fills, backs = cache.access(
                    int(first[tensor]),
                    min(max(touched, 1), int(pages[tensor])),
                    bool(row["bytes_written"]),
                )
                filled, written_back = filled + fills, written_back + backs
            if cache.state() == before:
                break
        slow = tiers.tiers[1]
        filled, written_back = filled * profile.page_bytes, written_back * profile.page_bytes
        extra_ns = 0.0
        for size, rate in ((filled, slow.read_bytes_per_s), (written_back, slow.write_bytes_per_s)):
            extra_ns += size * 1e9 / rate if rate > 0 else 0.0
        return HardwareStep(extra_ns, filled, written_back)


class _Cache:
    """Lines by their place: which page is there (-1: none), and whether it is dirty."""

    def __init__(self, lines: int) -> None:
        self._page = np.full(lines, -1, np.int64)
        self._dirty = np.zeros(lines, np.bool_)

    def access(self, first: int, pages: int, writes: bool) -> tuple[int, int]:
        """(lines filled, lines written back) by an access to pages that follow each other."""
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
        """All of it."""
        return self._page.tobytes() + self._dirty.tobytes()


def _first_pages(plan: Plan, profile: Profile) -> Integers:
    """Where each tensor begins in a memory in which the spaces follow each other."""
    space, offset = places(plan, profile)
    start, pages = offset // profile.page_bytes, tensor_pages(profile)
    heap = -(-plan.layout.arena_bytes // profile.page_bytes)
    beyond = heap + int((start + pages)[space == Space.HEAP].max(initial=0))
    loose = space < 0
    begin = beyond + np.cumsum(np.where(loose, pages, 0)) - pages
    found: Integers = np.where(loose, begin, start + np.where(space == Space.HEAP, heap, 0))
    return found
