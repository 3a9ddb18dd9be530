# SPDX-License-Identifier: Apache-2.0
"""Policies `zero-infinity` and `zero-infinity+slow`: fetch parameters before their layer runs.

Based on ZeRO-Infinity (Rajbhandari et al., SC 2021; arXiv 2104.07857): parameters, gradients and
the optimizer's state are in the CPU's memory or on NVMe. The parameters of a layer are fetched
before the layer runs, in the forward pass and again in the backward pass, and released after it.
The prefetcher follows the order of layers of the previous step, and fetches for later layers while
the current one runs. Activations stay in the GPU's memory.

Adapted to memory tiers: there is one slow tier. Gradients and optimizer state are placed as under
`zero-offload` (zero_offload.py). A parameter is moved to the slow tier in each gap between two
layers that use it. It is fetched a number of layers (see LAYERS_AHEAD) before the second of these
layers. The optimizer updates parameters in slow memory, like its other tensors. If a fetch is late,
the original waits for it. Here, the process does not wait for promotions at boundaries, so the
fetch begins earlier if the bandwidth does not suffice. A parameter stays fast in gaps that are too
short for both transfers.

Left out: partitioning across GPUs; splitting one operator into tiles; and the offload of
activations to the CPU's memory. The original offloads only activation checkpoints and recomputes
the other activations; this policy only moves tensors and can't recompute them.

`zero-infinity` keeps activations fast. If activations and the parameters of the layers that run do
not fit, the policy fails with the error "infeasible as published". `zero-infinity+slow` is our
extension: if not all tensors fit into fast memory, more tensors are placed on the slow tier, chosen
by the lowest cost per freed page. The policy tries all values in LAYERS_AHEAD and keeps the plan
with the shortest predicted step.
"""

from __future__ import annotations

from sentineld.model.tiers import Tiers
from sentineld.policies.registry import register
from sentineld.policies.rivals.lms import swap_in_at
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, gaps
from sentineld.policies.rivals.zero_offload import Roles, offload, roles_of

LAYERS_AHEAD = (1, 2, 5, 20)
"""Numbers of layers by which parameters are fetched ahead. The original's limit is a number of
bytes."""


@register("zero-infinity", False)
@register("zero-infinity+slow", True)
class ZeroInfinity(SwappingPolicy):
    """Policies `zero-infinity` and `zero-infinity+slow`, which try several distances of the
    prefetch."""

    sweep = LAYERS_AHEAD
    obstacle = "activations and the parameters of the layers that run do not fit"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of LAYERS_AHEAD."""
        del tiers  # not needed: the book contains the bandwidth
        roles = roles_of(book.profile)
        offload(book, roles, 0.0)
        fetch(book, roles, int(value))
        return f"parameters are fetched {value:g} layer{'s' * (value > 1)} ahead"


def fetch(book: Book, roles: Roles, ahead: int) -> None:
    """Add swaps of the parameters between the layers that use them, in the order of the fetches."""
    found = [gap for gap in gaps(book, ~roles.in_optimizer) if roles.parameter[gap.tensor]]
    for gap in sorted(found, key=lambda gap: gap.until):
        book.try_swap(gap, swap_in_at(book, gap, ahead))
