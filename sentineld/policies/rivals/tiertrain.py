# SPDX-License-Identifier: Apache-2.0
"""Policy `tiertrain`: offload every saved tensor immediately, and prefetch in the order of a queue.

Modelled on TierTrain (Swaminathan et al., ISMM 2025), which trains on CPUs with slow memory that
the CPU can access directly (CXL, NVMM). Only the abstract and third parties' notes were available,
so this policy's rules may differ from TierTrain's. The accesses of a training are periodic, so they
need not be observed: queues determine the times of all moves. A tensor that the forward pass saves
for the backward pass enters the queue of offloads after its last use in the forward pass, and is
demoted as soon as the bandwidth allows it. Offloading is aggressive: it does not stop when
everything fits, so it also frees fast memory for other programs. The queue of prefetches holds the
same tensors in the order in which the backward pass uses them. While a tensor is used, the tensor
that is `depth` places behind it in the queue is promoted. How TierTrain sizes its queues is not
public; the policy tries all values in DEPTHS and keeps the plan with the shortest predicted step.

The sources leave some rules open. We have chosen these: only transient tensors move. A tensor whose
gap (the time between its two uses) is too short for both transfers stays fast. If not all tensors
fit into fast memory, some are slow for their whole lives, as under the policies with `+slow`: the
tensor with the lowest cost per freed page is made slow, and so on, until the others fit.
"""

from __future__ import annotations

from sentineld.model.tiers import Tiers
from sentineld.policies.registry import register
from sentineld.policies.rivals.passes import saved
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, Gap

DEPTHS = (1, 2, 4, 8, 16)
"""Values of the depth of the queue of prefetches, in tensors."""


@register("tiertrain", True)
class TierTrain(SwappingPolicy):
    """Policy `tiertrain`, which tries several depths."""

    sweep = DEPTHS
    obstacle = "offloading the saved tensors does not make room"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of DEPTHS."""
        del tiers  # not needed: the book contains the bandwidth
        queue = prefetch_queue(book)
        begins = {gap: prefetch_at(book, queue, at, int(value)) for at, gap in enumerate(queue)}
        for gap in sorted(queue, key=lambda gap: book.stretch(gap, gap.since)):
            book.try_swap(gap, begins[gap])
        return f"depth of the queue {value:g}"


def prefetch_queue(book: Book) -> list[Gap]:
    """The gaps of saved tensors between forward and backward pass, in the order of their second
    uses. Of the tensors that a stretch uses, the one that was saved last comes first."""
    queue = saved(book)
    queue.reverse()
    queue.sort(key=lambda gap: book.stretch(gap, gap.until))
    return queue


def prefetch_at(book: Book, queue: list[Gap], at: int, depth: int) -> int:
    """The position (see Gap), after the gap's first use, at which the tensor's prefetch begins.
    The prefetch begins at the second use of the tensor that is `depth` places ahead in the queue
    or, if there is no such tensor, of the first tensor in the queue. at: the gap's place in the
    queue."""
    gap, ahead = queue[at], queue[max(at - depth, 0)]
    used, begins = book.stretch(gap, gap.until), book.stretch(ahead, ahead.until)
    return max(gap.until - (used - begins), gap.since + 1)
