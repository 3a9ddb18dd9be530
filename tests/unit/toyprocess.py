# SPDX-License-Identifier: Apache-2.0
"""A process that replays the steps of the toy plan (plan/toys.py), on emulated pages."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from sentineld.config import TierOverrides
from sentineld.machine.emulated import EmulatedSubstrate
from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.process_memory import Memory, Wait
from sentineld.migrate.syscalls import Addresses, MoveResult, Status
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.protocol import Mode
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from tests.unit.links import Linked
from tests.unit.plan.toys import HEAP, PAGE
from tests.unit.residency import ToyResidency

FAST, SLOW = 1, 2


def toy_linked(**words: int) -> Linked:
    """A process that replays the toy plan, at the start of step 10. words: initial values of
    further control words; see Linked."""
    return Linked(
        **words,
        heap_base=HEAP,
        heap_used=6 * PAGE,
        arena_base=HEAP << 1,
        arena_bytes=5 * PAGE,
        mode=Mode.REPLAY,
        step=10,
        position=10 << 32,
    )


class ToyPages:
    """Emulated memory of the toy process: a 5-page arena and a 6-page heap.

    heap: tier of each heap page (FAST or SLOW).
    moving, querying: locks that each move and each query of pages takes, so that a test can hold
        them back.
    """

    def __init__(self, bytes_per_s: float = 1e12, batch_pages: int = 256) -> None:
        self._bucket, self._batch_pages = TokenBucket(bytes_per_s), batch_pages
        self.moving, self.querying = threading.Lock(), threading.Lock()
        self.heap = np.array([FAST, FAST, SLOW, SLOW, FAST, FAST], np.uint8)

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """The process's memory, as Substrate.memory() returns it."""
        maps = {Space.ARENA: np.zeros(5, np.uint8), Space.HEAP: self.heap}
        memory = _BlockableMemory(self, ToyResidency(maps, PAGE), spaces, tiers, self._bucket)
        memory.batch_pages = memory.ahead_pages = self._batch_pages
        return memory


class ToySubstrate(EmulatedSubstrate):
    """Emulated tiers whose memory is the toy's pages."""

    def __init__(self, pages: ToyPages) -> None:
        super().__init__(TierOverrides(emulated="cxl"))
        self._pages = pages

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        return self._pages.memory(link, spaces, tiers)


class _BlockableMemory(EmulatedMemory):
    def __init__(self, pages: ToyPages, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._moving, self._querying = pages.moving, pages.querying

    def query_pages(self, pages: Addresses) -> Status:
        with self._querying:
            return super().query_pages(pages)

    def move_pages(self, pages: Addresses, node: int, wait: Wait | None = None) -> MoveResult:
        with self._moving:
            return super().move_pages(pages, node, wait)
