# SPDX-License-Identifier: Apache-2.0
"""Policies `zero-offload` and `zero-offload+slow`: place tensors by their role in the training.

Based on ZeRO-Offload (Ren et al., USENIX ATC 2021; arXiv 2101.06840): gradients and the optimizer's
state are in the CPU's memory, and the CPU runs the optimizer there. Parameters and activations are
in the GPU's memory. Of all divisions of the training's data-flow graph between GPU and CPU, this
one transfers the fewest bytes: per step, the gradients in one direction and the updated parameters
in the other. Twin-flow (ZeRO-Offload++) leaves a share of the optimizer to the GPU.

Adapted to memory tiers: gradients are born on the slow tier, and the optimizer accesses them and
its state there. So writes of the backward pass to slow memory replace the transfer of gradients,
and no tensor moves. A persistent tensor is optimizer state if only optimizer stretches access it.
All other persistent tensors are parameters; they stay fast even while the optimizer runs, because
there is only one copy of each. A profile does not say which gradients and state belong together, so
twin-flow's share is applied to the gradients and to the state separately, in the order of the
profile.

Left out: mixed precision, in which parameters exist twice (FP16 on the GPU, FP32 on the CPU); the
update that is delayed by one step, because a memory policy must not change results; partitioning
across several GPUs.

`zero-offload` keeps parameters and activations fast. If they do not fit, the policy fails with the
error "infeasible as published". `zero-offload+slow` is our extension: if not all fast tensors fit,
some of them are made slow, chosen by the lowest cost per freed page. The policy tries all values in
FAST_SHARES and keeps the plan with the shortest predicted step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.profile import Kind, Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.policies.registry import register
from sentineld.policies.rivals.passes import passes
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, swappable

FAST_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
"""Values of the share of gradients and of optimizer state that is fast. The original uses 0; the
other values are for twin-flow."""


@register("zero-offload", False)
@register("zero-offload+slow", True)
class ZeroOffload(SwappingPolicy):
    """Policies `zero-offload` and `zero-offload+slow`, which try all FAST_SHARES."""

    sweep = FAST_SHARES
    obstacle = "parameters and activations do not fit"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: one of FAST_SHARES."""
        del tiers  # nothing moves
        offload(book, roles_of(book.profile), value)
        return f"gradients and optimizer state slow, except for {value:.0%} of each"


@dataclass(frozen=True)
class Roles:
    """The roles of T tensors. Activations have none of these roles."""

    gradient: Mask  # (T,)
    state: Mask  # (T,): the optimizer's state
    parameter: Mask  # (T,)
    in_optimizer: Mask  # (A,): which accesses the optimizer makes


def roles_of(profile: Profile) -> Roles:
    """Find the role of each tensor."""
    forward, backward = passes(profile)
    rows = profile.accesses
    in_optimizer = ~(forward | backward)[rows["stretch"]]
    in_layers = np.zeros(len(profile.tensors), np.bool_)
    in_layers[rows["tensor"][~in_optimizer]] = True
    stays = persistent(profile)
    gradient = transient(profile) & (profile.tensors["kind"] == Kind.GRADIENT)
    return Roles(gradient, stays & ~in_layers, stays & in_layers, in_optimizer)


def offload(book: Book, roles: Roles, fast_share: float) -> None:
    """Make gradients and optimizer state slow. The first tensors of each of these two roles stay
    fast, as long as they hold at most fast_share of the role's pages."""
    pages = tensor_pages(book.profile)
    movable = swappable(book.profile, book.short) & ~book.slow
    for role in (roles.gradient, roles.state):
        tensors: Integers = np.flatnonzero(role & movable)
        filled = np.cumsum(pages[tensors])
        slow = tensors[filled > fast_share * pages[tensors].sum()]
        for tensor in slow.tolist():
            book.make_slow(tensor)
