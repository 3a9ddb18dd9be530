# SPDX-License-Identifier: Apache-2.0
"""Two tiers with simple figures."""

from __future__ import annotations

from typing import Any

from sentineld.model.tiers import Overlap, Tier, Tiers
from tests.unit.plan.toys import PAGE


def paged_tiers(
    read_pages_per_s: float, write_pages_per_s: float, latency_ns: float = 0.0
) -> Tiers:
    """Paged tiers: memory, and a file that is read and written at these rates."""
    read, write = read_pages_per_s * PAGE, write_pages_per_s * PAGE
    fast, slow = Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, read, write, latency_ns)
    return Tiers((fast, slow), 2 / (1 / read + 1 / write), "toy", paged=True)


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "yielding moves": {"moves_yield": True},
    "overlapping computation": {"overlap": Overlap.COMPUTE},
    "overlapping tiers": {"overlap": Overlap.TIERS},
    "all tiers overlap, moves yield": {"overlap": Overlap.TIERS, "moves_yield": True},
}
"""The settings of Tiers for each variant of the timing model, by the variant's name."""


def tiers(pages_per_s: float) -> Tiers:
    fast, slow = Tier((0,), 0, 8e9, 4e9), Tier((1,), 0, 2e9, 1e9)
    return Tiers((fast, slow), pages_per_s * PAGE, "toy")
