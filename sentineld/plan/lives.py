# SPDX-License-Identifier: Apache-2.0
"""Lives of chunks: when each chunk is in fast memory, and when it is moved."""

from __future__ import annotations

from dataclasses import dataclass

from sentineld.model.arrays import Floats, Mask
from sentineld.plan.items import Items


@dataclass(frozen=True)
class Lives:
    """The lives of N chunks. Position j of a chunk is stretch j of its lifetime; see Items."""

    value: Floats
    """(N,): the sum of the gains of each life (Gains in policies/lp/relax.py). Unit: page accesses;
    in policies/lp/dual.py, ns per page. 0 if it was not computed."""

    fast: Mask
    """(S, N): whether the chunk is fast when the position begins. A move that starts in a position
    takes effect at the end of the position."""

    moving: Mask
    """(S, N): whether the chunk is moved in the position and is on the other tier afterwards."""

    @property
    def held(self) -> Mask:
        """(S, N): whether the chunk takes up fast pages in the position, because it is fast or in
        flight."""
        return self.fast | self.moving

    def served(self, items: Items) -> Floats:
        """(N,): page accesses served by the fast tier; a chunk in flight counts as slow."""
        served: Floats = (items.worth * (self.fast & ~self.moving)).sum(axis=0)
        return served
