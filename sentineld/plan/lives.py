# SPDX-License-Identifier: Apache-2.0
"""Lives of chunks: in which positions each is in fast memory, and when it is moved."""

from __future__ import annotations

from dataclasses import dataclass

from sentineld.model.arrays import Floats, Mask
from sentineld.plan.items import Items


@dataclass(frozen=True)
class Lives:
    """One life for each of N chunks, by position of the life; see Items."""

    value: Floats
    """(N,): worth less costs, in page accesses."""

    fast: Mask
    """(S, N): fast when the position begins. A move begun in it goes on during it."""

    moving: Mask
    """(S, N): moved in this position, so that the tier after it is the other one."""

    @property
    def held(self) -> Mask:
        """(S, N): positions in which a chunk takes fast pages: fast, or in flight."""
        return self.fast | self.moving

    def served(self, items: Items) -> Floats:
        """(N,): page accesses served fast; a chunk in flight counts as slow."""
        served: Floats = (items.worth * (self.fast & ~self.moving)).sum(axis=0)
        return served
