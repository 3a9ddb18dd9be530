# SPDX-License-Identifier: Apache-2.0
"""Policies `capuchin` and `capuchin+slow`: swap tensors out in the gaps with the most free time.

Based on Capuchin (Peng et al., ASPLOS 2020): in one step's list of accesses, a gap between two
accesses to a tensor is a candidate if it spans the memory peak. The free time of a gap is its
length minus the time of the transfers out and back in. As long as the resident tensors exceed
memory, the policy uses the candidate with the most free time. The tensor is swapped out right after
the first access. It is swapped back in just in time for the second access, or earlier if other
transfers use the bandwidth.

Adapted to memory tiers: transfers in both directions share the time of a stretch, and a gap lies
between two stretches that use the tensor, not between two single accesses. Recomputation is left
out, because a memory policy can't recompute a tensor. Gaps without free time, for which the
original considers recomputation, are therefore not used. The feedback from running steps is left
out, too: if a transfer is still in flight when its tensor is accessed, the original starts this
transfer earlier in the next step, by 5 % of the transfer's time. Here, a plan is made for each
value of EARLIER, which applies to all transfers, and the best plan is used. `capuchin` never
accesses slow memory, as on a GPU. If it can't make everything fit, it fails with the error
"infeasible as published". `capuchin+slow` is our extension: it makes tensors slow for their whole
lives, beginning with those that cost least per freed page, until the others fit into fast memory.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import register
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, gaps

EARLIER = (0.05, 0.0, 0.2)
"""Extra time that a plan allows for each transfer, as a share of the transfer's own time. A plan is
made for each value."""


@register("capuchin", False)
@register("capuchin+slow", True)
class Capuchin(SwappingPolicy):
    """Policies `capuchin` and `capuchin+slow`, which try each value of EARLIER."""

    sweep = EARLIER
    obstacle = "its gaps have too little free time to make room"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of EARLIER."""
        book.lanes /= 1 + value
        page_ns = timing_of(tiers).mean_move_ns_per_byte * book.profile.page_bytes * (1 + value)
        relieve(book, page_ns)
        return f"{value:.0%} more time for each transfer"


def relieve(book: Book, page_ns: float) -> None:
    """Add swaps to the book, those in the gaps with the most free time first, until everything fits
    or no gap with free time is left.

    page_ns: time to transfer a page, as the mean of both directions.
    """
    times = book.profile.stretches["time_ns"].astype(np.float64)
    pages = tensor_pages(book.profile)
    free_ns = [
        (float(times[book.between(gap)].sum()) - 2 * float(pages[gap.tensor]) * page_ns, gap)
        for gap in gaps(book)
    ]
    # The sort is stable: gaps with equal free time keep the order of gaps(), by tensor.
    for spare_ns, gap in sorted(free_ns, key=lambda entry: -entry[0]):
        over = book.over
        if not over.any() or spare_ns < 0:
            return
        if over[book.between(gap)].any():
            book.try_swap(gap)
