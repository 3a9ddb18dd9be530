# SPDX-License-Identifier: Apache-2.0
"""A process that runs the toy profile's steps under its plan, on emulated pages."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from sentineld.migrate.emulated import EmulatedMemory
from sentineld.migrate.process_memory import Memory
from sentineld.migrate.syscalls import Addresses, MoveResult
from sentineld.migrate.token_bucket import TokenBucket
from sentineld.model.plan import Space
from sentineld.model.protocol import Mode
from sentineld.model.tiers import Tiers
from sentineld.observe.shim_link import ShimLink
from tests.unit.links import Linked
from tests.unit.plan.toys import HEAP, PAGE

FAST, SLOW = 1, 2


def toy_linked() -> Linked:
    """A link to a process in step 10, which follows the plan."""
    return Linked(
        heap_base=HEAP,
        heap_used=6 * PAGE,
        arena_base=HEAP << 1,
        arena_bytes=5 * PAGE,
        mode=Mode.REPLAY,
        step=10,
        position=10 << 32,
    )


class ToyPages:
    """heap: the node of each page of the process's heap. moving: held while pages move."""

    def __init__(self, bytes_per_s: float = 1e12, batch_pages: int = 256) -> None:
        self._bucket, self._batch_pages = TokenBucket(bytes_per_s), batch_pages
        self.moving = threading.Lock()
        self.heap = np.array([FAST, FAST, SLOW, SLOW, FAST, FAST], np.uint8)

    def memory(
        self, link: ShimLink, spaces: Mapping[Space, tuple[int, int]], tiers: Tiers
    ) -> Memory:
        """As Substrate.memory()."""
        maps = {Space.ARENA: np.zeros(5, np.uint8), Space.HEAP: self.heap}
        return _Held(self.moving, maps, spaces, tiers, self._bucket, batch_pages=self._batch_pages)


class _Held(EmulatedMemory):
    def __init__(self, moving: threading.Lock, *how: Any, **more: Any) -> None:
        super().__init__(*how, **more)
        self._moving = moving

    def move_pages(self, pages: Addresses, node: int) -> MoveResult:
        with self._moving:
            return super().move_pages(pages, node)
