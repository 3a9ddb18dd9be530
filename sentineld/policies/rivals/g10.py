# SPDX-License-Identifier: Apache-2.0
"""Policies `g10` and `g10+slow`: swap tensors out in the gaps that relieve the most pressure.

Based on G10 (Zhang et al., MICRO 2023; its artifact's scheduler): a gap is the time between two
uses of a tensor. The pressure area of a gap is the tensor's bytes times the part of the gap's time
in which the resident tensors exceed memory. As long as the resident tensors exceed memory, the
policy swaps a tensor out in the gap with the largest pressure area. Among gaps with equal areas, it
uses the one with the largest product of bytes and length. A gap must be longer than (2 + delta)
times the time of a transfer of the tensor. The tensor is swapped out right after the first use and
swapped back in as late as the bandwidth allows, provided that the transfer out ends before the
transfer in begins. Finally, tensors are swapped in earlier where there is room.

Adapted to memory tiers: there is one slow tier (the artifact's host memory; no SSD), transfers in
both directions share the time of a stretch, and stretches replace kernels. `g10` never accesses
slow memory, as on a GPU. If it can't make everything fit, it fails with the error "infeasible as
published". `g10+slow` is our extension: it makes tensors slow for their whole lives, beginning with
those that cost least per freed page, until the others fit into fast memory. Each of the two
policies tries all values in DELTAS and keeps the plan with the shortest predicted step.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import register
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, gaps

DELTAS = (0.5, 0.0, 2.0)
"""Values of delta: the minimum slack of a gap beyond its two transfers, as a multiple of the time
of one transfer. The artifact uses 0.5."""

TIE = 1e-6
"""Two pressure areas are treated as equal if their relative difference is smaller than this. Of two
gaps with equal areas, the gap with the larger product of bytes and length comes first."""


@register("g10", False)
@register("g10+slow", True)
class G10(SwappingPolicy):
    """Policies `g10` and `g10+slow`, which try several values of the minimum slack of gaps."""

    sweep = DELTAS
    obstacle = "its gaps are too short, or the bandwidth is too low, to make room"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of DELTAS."""
        relieve(book, tiers, value)
        return f"slack of {value:g} transfers"

    def improve(self, book: Book) -> None:
        """Swap tensors back in earlier where possible."""
        book.hasten()


def relieve(book: Book, tiers: Tiers, delta: float) -> None:
    """Add swaps to the book until everything fits or no remaining gap makes room."""
    profile = book.profile
    times = profile.stretches["time_ns"].astype(np.float64)
    pages = tensor_pages(profile).astype(np.float64)
    page_ns = timing_of(tiers).mean_move_ns_per_byte * profile.page_bytes
    found = gaps(book)
    size = pages[[gap.tensor for gap in found]]
    # (gaps, S): 1 for the stretches between the two uses of each gap.
    between = np.zeros((len(found), profile.stretch_count))
    for at, gap in enumerate(found):
        between[at, book.between(gap)] = 1.0
    spans = between @ times
    left = spans > (2 + delta) * size * page_ns
    while book.over.any():
        areas = np.where(left, (between @ (times * book.over)) * size, 0.0)
        if not areas.any():
            return
        largest = np.flatnonzero(areas >= areas.max() * (1 - TIE))
        chosen = int(largest[np.argmax((spans * size)[largest])])
        left[chosen] = False
        book.try_swap(found[chosen])
