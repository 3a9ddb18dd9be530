# SPDX-License-Identifier: Apache-2.0
"""Policies `flashneuron` and `flashneuron+slow`: offload saved tensors in the order of generation.

Based on FlashNeuron (Bae et al., FAST 2021; its artifact's offloading scheduler and
saved_variable.cpp): only tensors that the forward pass saves for the backward pass are offloaded,
and only those of at least 1 MB. The scheduler takes these tensors in the order in which they are
generated, and stops when they cover the memory deficit, that is, the bytes by which the resident
tensors exceed memory. While it selects tensors, it simulates the queue of transfers. A transfer
begins when the transfers before it have ended. A tensor takes up fast memory until its own transfer
has ended. The backward pass prefetches each tensor as soon as there is room for it.

Adapted to memory tiers: there is one slow tier in place of the SSD, and transfers in both
directions share the time of a stretch. A tensor is saved if a gap between two of its uses begins in
the forward pass and ends in the backward pass; it is offloaded in this gap. Each stretch has its
own memory deficit. The scheduler skips a tensor if its offload would make no room in any stretch
with a deficit. It also skips a tensor whose transfers do not fit into its gap (in the original, the
training then waits).

Left out: compression. If the offloads end after the forward pass, the original replaces the last
tensors of its selection with tensors that it can compress as sparse matrices (CSR) or as FP16,
which halves their transfers. Here, a page keeps its content and its size on both tiers.

`flashneuron` never accesses slow memory, as on a GPU. If it can't make everything fit, it fails
with the error "infeasible as published"; parameters and optimizer state are never offloaded, so
they have to fit, too. `flashneuron+slow` is our extension: it makes tensors slow for their whole
lives, beginning with those that cost least per freed page, until the others fit into fast memory.
Each of the two policies tries all values in LEAST_BYTES and keeps the plan with the shortest
predicted step.
"""

from __future__ import annotations

from sentineld.base.units import format_bytes
from sentineld.model.tiers import Tiers
from sentineld.policies.registry import register
from sentineld.policies.rivals.passes import saved
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book

MIB = 1 << 20
LEAST_BYTES = (MIB, 0, 4 * MIB)
"""Values of the minimum size of an offloaded tensor. The artifact uses 1 MB."""


@register("flashneuron", False)
@register("flashneuron+slow", True)
class FlashNeuron(SwappingPolicy):
    """Policies `flashneuron` and `flashneuron+slow`, which try several minimum sizes."""

    sweep = LEAST_BYTES
    obstacle = "offloading all saved tensors makes too little room, or takes too long"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of LEAST_BYTES."""
        del tiers  # not needed: the book contains the bandwidth
        relieve(book, int(value))
        return f"saved tensors of at least {format_bytes(int(value))}"

    def improve(self, book: Book) -> None:
        """Prefetch each tensor as soon as there is room for it."""
        book.hasten()


def relieve(book: Book, least_bytes: int) -> None:
    """Offload saved tensors of at least least_bytes, in the order of their generation, until
    everything fits."""
    for gap in saved(book):
        over = book.over
        if not over.any():
            return
        large = book.profile.tensors["bytes"][gap.tensor] >= least_bytes
        if large and over[book.between(gap)].any():
            book.try_swap(gap)
