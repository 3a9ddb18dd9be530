# SPDX-License-Identifier: Apache-2.0
"""Policies `lms` and `lms+slow`: swap out the tensors that are used again after many layers.

Based on the first version of LMS for TensorFlow (Le et al., TFLMS, ISMM 2019; arXiv 1807.02037):
the graph of a step is rewritten. An edge of the graph is rewritten if its second operation is more
than `threshold` operations later in topological order than its first operation. The edge gets a
swap-out after the first operation and a swap-in before the second. The swap-in begins at the end of
an operation that is at least `lb` operations before the second. The number of rewritten tensors
(`n_tensors`) is not limited by default.

Adapted to memory tiers: distances are counted in layers (module calls), because a profile has no
operations. Gaps between two uses of a transient tensor replace the edges. Persistent tensors are
not swapped, because the original does not rewrite variables. The threshold is the largest one at
which everything fits: each policy begins with the longest distance and lowers the threshold until
everything fits. The number of swapped tensors is not limited. If a swap-in is late, the original
waits for it. Here, the process does not wait for promotions at boundaries, so the swap-in begins
earlier if the bandwidth does not suffice; a gap that is too short for its transfers is not used.

`lms` never accesses slow memory, as on a GPU. If it can't make everything fit, it fails with the
error "infeasible as published". `lms+slow` is our extension: if not all tensors fit into fast
memory, some stay on the slow tier, chosen by the lowest cost per freed page. Each of the two
policies tries all values in LOWER_BOUNDS and keeps the plan with the shortest predicted step.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from sentineld.model.protocol import Boundary
from sentineld.model.tiers import Tiers
from sentineld.plan.items import transient
from sentineld.policies.registry import register
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, Gap, gaps

LOWER_BOUNDS = (1, 2, 5, 20)
"""Values of the lower bound `lb`, in layers. The original's default is 1."""


@register("lms", False)
@register("lms+slow", True)
class Lms(SwappingPolicy):
    """Policies `lms` and `lms+slow`, which try several lower bounds."""

    sweep = LOWER_BOUNDS
    obstacle = "swapping out the tensors that are used again in later layers does not make room"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of LOWER_BOUNDS."""
        threshold = relieve(book, int(value))
        return f"threshold {threshold}, lower bound {value:g} (layers)"


def relieve(book: Book, lower_bound: int) -> int:
    """Add swaps to the book for all gaps of transient tensors that are longer than a threshold.
    Returns the threshold, in layers: the largest one at which everything fits. If there is no such
    threshold, swaps are added for all gaps of transient tensors."""
    moving = transient(book.profile)
    found = [(distance(book, gap), gap) for gap in gaps(book) if moving[gap.tensor]]
    threshold = max((layers for layers, _ in found), default=0)
    # The sort is stable: gaps of equal distance stay in the order in which gaps() returns them.
    for layers, group in groupby(
        sorted(found, key=lambda entry: -entry[0]), lambda entry: entry[0]
    ):
        if not book.over.any():
            return threshold
        threshold = max(layers - 1, 0)
        for _, gap in group:
            book.try_swap(gap, swap_in_at(book, gap, lower_bound))
    return threshold


def distance(book: Book, gap: Gap) -> int:
    """The number of layers from the gap's first use to its second use; 0: both uses are in one
    layer."""
    return len(_begins(book, gap))


def swap_in_at(book: Book, gap: Gap, lower_bound: int) -> int:
    """The position (see Gap) at which the swap-in begins: the beginning of the layer that is
    lower_bound layers before the layer of the gap's second use. If the gap has fewer layers, the
    position is the beginning of the first layer that begins in the gap. If no layer begins in the
    gap, the position is that of the gap's second use."""
    begins = _begins(book, gap)
    return begins[max(len(begins) - 1 - lower_bound, 0)] if begins else gap.until


def _begins(book: Book, gap: Gap) -> list[int]:
    """The positions after the gap's first use, up to and including its second use, at which a layer
    begins."""
    positions = np.arange(gap.since + 1, gap.until + 1)
    stretches = (book.birth[gap.tensor] + positions) % book.profile.stretch_count
    kinds = book.profile.stretches["kind"][stretches]
    begins: list[int] = positions[kinds != Boundary.CUT].tolist()
    return begins
