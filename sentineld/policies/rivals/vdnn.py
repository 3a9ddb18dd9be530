# SPDX-License-Identifier: Apache-2.0
"""Policies `vdnn` and `vdnn+slow`: offload the layers' inputs in the forward pass, layer by layer.

Based on vDNN (Rhu et al., MICRO 2016): a layer's input feature maps are offloaded while the last
layer that uses them in the forward pass runs. The next layer does not start before the offload is
complete. When a layer of the backward pass starts, the layers after it are searched for the first
one whose inputs are offloaded and not yet prefetched; the prefetch of these inputs then begins. The
search ends at the first convolution layer. Mode `all` offloads all layers' inputs, mode `conv` the
inputs of convolution layers. Mode `dyn` first tries no offload, then `conv`, then `all`, and keeps
the first mode that fits into memory.

Adapted to memory tiers: a profile does not say which layers are convolutions. In the original,
convolutions matter because they take the most time, during which a transfer can run. So the policy
treats a layer as a convolution if the layer is heavy, that is, if it takes at least the mean time
of the forward pass's layers. A tensor is offloaded right after its last use in the forward pass
instead of during this use, because the swaps of the book (swaps.py) lie between two uses. So the
offload begins in the rest of the layer of this use or, if this use ends the layer, in the next
layer. The layer after the one in which the offload begins does not start before the offload is
complete. The original also waits for a prefetch that is late. Here, the process does not wait for
promotions at boundaries, so the prefetch begins earlier if the bandwidth does not suffice; an input
that cannot be prefetched in time is not offloaded. The choice of convolution algorithms, the other
part of `dyn`, is left out, because a memory policy can't make it.

`vdnn` never accesses slow memory, as on a GPU. If it can't make everything fit, it fails with the
error "infeasible as published". `vdnn+slow` is our extension: if not all tensors fit into fast
memory, some stay on the slow tier, chosen by the lowest cost per freed page. The policy tries all
modes in the order of `dyn` and keeps the plan with the shortest predicted step. So this step is
never longer than the predicted step of `dyn`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from sentineld.model.profile import Kind
from sentineld.model.tiers import Tiers
from sentineld.policies.registry import register
from sentineld.policies.rivals.passes import Pass, layers_of
from sentineld.policies.rivals.swapping import SwappingPolicy
from sentineld.policies.rivals.swaps import Book, Gap, gaps


class Mode(IntEnum):
    """The layers whose inputs are offloaded. The modes are in the order in which `dyn` tries
    them."""

    NONE = 0
    CONV = 1
    ALL = 2


@register("vdnn", False)
@register("vdnn+slow", True)
class Vdnn(SwappingPolicy):
    """Policies `vdnn` and `vdnn+slow`, which try all modes."""

    sweep = tuple(Mode)
    obstacle = "offloading the layers' inputs does not make room"
    synchronous = True

    def relieve(self, book: Book, tiers: Tiers, value: float) -> str:
        """See SwappingPolicy. value: a Mode."""
        mode = Mode(int(value))
        offload(book, mode, at_once=not tiers.paged)
        return f"mode {mode.name.lower()}"


def offload(book: Book, mode: Mode, at_once: bool) -> None:
    """Add to the book the swaps of the inputs that the mode offloads. at_once: see
    Book.try_swap()."""
    if mode == Mode.NONE:
        return
    layers = layers_of(book.profile)
    chosen = [
        gap
        for gap in gaps(book)
        if _spans_passes(book, gap, layers)
        and (mode == Mode.ALL or _feeds_heavy(book, gap, layers))
    ]
    # For each input, the layer that uses it first in its backward pass.
    users = [int(layers.layer[book.stretch(gap, gap.until)]) for gap in chosen]
    begins = prefetches(layers, users)
    # Add the swaps in the order of their prefetches, because the prefetches share the bandwidth.
    for gap, user in sorted(zip(chosen, users, strict=True), key=lambda entry: entry[1]):
        stretch = begins.get(user)
        begin = None if stretch is None else stretch - int(book.birth[gap.tensor])
        book.try_swap(gap, begin, at_once)


def prefetches(layers: Pass, users: list[int]) -> dict[int, int]:
    """The stretch in which the prefetch of each layer's inputs begins, by layer.

    users: the layers of backward passes that use offloaded inputs. A layer is missing from the
        result if no earlier layer of its backward pass prefetches its inputs.
    """
    begin, backward = layers.begin, layers.backward[layers.begin]
    offloaded, found = set(users), dict[int, int]()
    for current in np.flatnonzero(backward).tolist():
        for later in range(current + 1, len(begin)):
            if not backward[later]:
                break
            if later in offloaded and later not in found:
                found[later] = int(begin[current])
                break
            if layers.heavy[later]:
                break
    return found


def _spans_passes(book: Book, gap: Gap, layers: Pass) -> bool:
    """Whether the gap lies between an activation's last use in a forward pass and its first use in
    the backward pass of the same step."""
    if book.profile.tensors["kind"][gap.tensor] != Kind.ACTIVATION:
        return False
    since, until = (int(book.birth[gap.tensor]) + at for at in (gap.since, gap.until))
    if until >= book.profile.stretch_count:
        return False
    return bool(layers.forward[since] and layers.backward[until])


def _feeds_heavy(book: Book, gap: Gap, layers: Pass) -> bool:
    """Whether a heavy layer of a forward pass uses the tensor. The layer in which the tensor is
    born counts only if no other layer uses the tensor."""
    rows = book.profile.accesses
    used = rows["stretch"][rows["tensor"] == gap.tensor].astype(np.int64)
    users = set(layers.layer[used[layers.forward[used]]].tolist())
    born = int(layers.layer[book.birth[gap.tensor]])
    return any(layers.heavy[user] for user in (users - {born}) or {born})
