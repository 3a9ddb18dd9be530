# SPDX-License-Identifier: Apache-2.0
"""Policies `superneurons` and `superneurons+slow`: offload checkpoints' outputs if memory is full.

Based on SuperNeurons (Wang et al., PPoPP 2018; its public code). Liveness analysis frees tensors
after their last use. The outputs of some layers, the checkpoints (convolutions, fully connected
layers, joins, forks, inputs and the loss), can be offloaded to the host's memory. SuperNeurons'
tensor cache offloads only if memory is full; it then offloads the least recently used tensor. In
the backward pass, a checkpoint prefetches the outputs that the next checkpoint needs. The layers
between two checkpoints form a segment. Their outputs are dropped and recomputed from the checkpoint
before them. A whole segment is recomputed at once if its outputs take no more bytes than the
largest layer of the backward pass needs. Otherwise, its outputs are recomputed separately for each
use.

Adapted to memory tiers: as in vdnn.py, heavy layers (see passes.py) stand in for checkpoints,
because a profile does not say what a layer computes. The policy walks through the step, stretch by
stretch. If the resident tensors exceed memory, it swaps out the least recently used tensor that is
between its last use in the forward pass and its first use in the backward pass. The tensor is
swapped out right after its last use, because the plan is made in advance; the original begins the
offload only when memory is full, and the training waits for it. The original also waits for a
prefetch that is late. Here, the process does not wait for promotions at boundaries, so the prefetch
begins earlier if the bandwidth does not suffice; a gap between two uses is not used for a swap if
it is too short for both transfers. Every plan includes the liveness analysis: a tensor is dropped
when it dies.

Left out: recomputation, because a memory policy can't recompute a tensor. So the outputs of layers
that are not checkpoints can only stay fast (mode CHECKPOINTS) or be treated like those of
checkpoints (mode ALL).

`superneurons` never accesses slow memory, as on a GPU. If it can't make everything fit, it fails
with the error "infeasible as published". `superneurons+slow` is our extension: if not all tensors
fit into fast memory, some stay on the slow tier, chosen by the lowest cost per freed page. Each
of the two policies tries both modes and keeps the plan with the shortest predicted step.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from sentineld.model.tiers import Tiers
from sentineld.policies.registry import register
from sentineld.policies.rivals.passes import Pass, layers_of, saved
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, Gap


class Mode(IntEnum):
    """The layers whose outputs may be offloaded."""

    CHECKPOINTS = 0
    ALL = 1


@register("superneurons", False)
@register("superneurons+slow", True)
class SuperNeurons(SwappingPolicy):
    """Policies `superneurons` and `superneurons+slow`, which try both modes."""

    sweep = tuple(Mode)
    obstacle = "offloading the layers' outputs does not make room"

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: a Mode."""
        del tiers  # not needed: the book contains the bandwidth
        mode = Mode(int(value))
        relieve(book, mode)
        return f"outputs of {'checkpoints' if mode == Mode.CHECKPOINTS else 'all layers'}"


def relieve(book: Book, mode: Mode) -> None:
    """For each stretch whose fast pages exceed the budget, plan swaps of the least recently used
    outputs."""
    layers = layers_of(book.profile)
    left = [
        gap
        for gap in saved(book)
        if mode == Mode.ALL or layers.heavy[layers.layer[book.birth[gap.tensor]]]
    ]
    inside = [set(book.between(gap).tolist()) for gap in left]
    tried: set[int] = set()
    for stretch in range(book.profile.stretch_count):
        if not book.over[stretch]:
            continue
        idle = [at for at in range(len(left)) if at not in tried and stretch in inside[at]]
        for at in sorted(idle, key=lambda at: -idle_for(book, left[at], stretch)):
            if not book.over[stretch]:
                break
            tried.add(at)
            book.try_swap(left[at], prefetch_at(book, left[at], layers))


def idle_for(book: Book, gap: Gap, stretch: int) -> int:
    """The number of stretches from the gap's first use to `stretch`."""
    return (stretch - book.stretch(gap, gap.since)) % book.profile.stretch_count


def prefetch_at(book: Book, gap: Gap, layers: Pass) -> int:
    """The position (see Gap) at which the swap-in begins. It is the beginning of a checkpoint: the
    last one that the backward pass executes before the layer of the gap's second use. If there is
    no such checkpoint, the position is the beginning of the backward pass."""
    used = book.stretch(gap, gap.until)
    backward, begins = layers.backward_begin(used), layers.begin
    ordinals = np.arange(len(begins))
    earlier = layers.heavy & (begins >= backward) & (ordinals < layers.layer[used])
    stretch = int(begins[earlier].max(initial=backward))
    return (stretch - int(book.birth[gap.tensor])) % book.profile.stretch_count
