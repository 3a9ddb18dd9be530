# SPDX-License-Identifier: Apache-2.0
"""Policy `dragon`: fetch on demand, and read ahead in the order of addresses.

Based on DRAGON (Markthub et al., SC 2018), a GPU driver that maps files on NVMe into a GPU's
address space. The sources are the paper's abstract, the description of its public repository and
third parties' notes. Page faults fetch pages from the file. Faults are coalesced, the pages after a
faulting page are read ahead, changed pages are written when they are evicted (lazy writes), and the
least recently used pages are evicted when memory is full. The driver has no information about the
training.

Adapted to memory tiers: the moves of the pages that a stretch accesses begin when the stretch
begins. On paged tiers, the stretch's accesses fault and wait for these pages; unchanged pages are
evicted without a write. On other tiers, the pages are accessed in slow memory while they move. The
demotions that make room for these pages and for births begin when the stretch begins, not at the
fault. In this file, a block is one of the simulator's cells; blocks are read ahead as a whole. The
sources do not give the size of the read-ahead, so several sizes are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.profile import Profile
from sentineld.plan.policy import Observation, Reactor
from sentineld.policies.registry import register
from sentineld.policies.rivals.prefetching import Prefetcher, StepOrder
from sentineld.policies.rivals.reactive import FirstTouchPolicy, LastUse

READ_AHEAD_PAGES = (512, 0, 4096)
"""Values of the number of pages that are read ahead after the last page of a fetched block."""


@register()
class Dragon(FirstTouchPolicy):
    """Policy `dragon`; see the module's docstring."""

    name = "dragon"

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """A driver for each value of READ_AHEAD_PAGES; see Reactive."""
        return [
            (f"{pages} pages read ahead", Driver(profile.stretch_count, pages))
            for pages in READ_AHEAD_PAGES
        ]


class Driver(Prefetcher):
    """The driver's state: how long ago each block was used."""

    def __init__(self, stretches: int, read_ahead_pages: int) -> None:
        """stretches: number of stretches in a step. read_ahead_pages: see READ_AHEAD_PAGES."""
        super().__init__(1, StepOrder(stretches))
        self._read_ahead_pages = read_ahead_pages
        self._last_use = LastUse()

    def _wanted(self, observation: Observation) -> Integers:
        """See Prefetcher. The blocks that the next stretch uses come first, then the blocks that
        are read ahead. The result has as many of all these blocks as fit into fast memory."""
        faulting = super()._wanted(observation)
        begin = np.cumsum(self._pages) - self._pages
        fetched = np.sort(faulting[observation.slow[faulting] > 0])
        past = begin[fetched] + self._pages[fetched]
        edges = np.zeros(len(begin) + 1, np.int64)
        np.add.at(edges, fetched + 1, 1)
        np.add.at(edges, np.searchsorted(begin, past + self._read_ahead_pages), -1)
        following = (np.cumsum(edges)[:-1] > 0) & (observation.slow > 0)
        following[faulting] = False
        wanted = np.concatenate([faulting, np.flatnonzero(following)])
        return wanted[np.cumsum(self._pages[wanted]) <= observation.capacity_pages]

    def _victims(self, idle: Integers, observation: Observation) -> Integers:
        """See Prefetcher."""
        self._last_use.tick(observation.accesses > 0)
        found = np.zeros(len(observation.fast), np.bool_)
        found[idle] = True
        return self._last_use.oldest(found)
