# SPDX-License-Identifier: Apache-2.0
"""The passes of a step (forward, backward, optimizer) as the swapping policies see them, the layers
of the step, and the gaps of the tensors that the forward pass saves for the backward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.profile import Profile
from sentineld.model.protocol import Boundary
from sentineld.plan.items import transient
from sentineld.plan.layers import layer_of_stretch
from sentineld.policies.rivals.swaps import Book, Gap, gaps


@dataclass(frozen=True)
class Pass:
    """The layers of a step, numbered from 0 in the order of the step."""

    layer: Integers  # (S,): the layer of each stretch
    begin: Integers  # first stretch of each layer
    forward: Mask  # (S,): which stretches are part of a forward pass; see passes()
    backward: Mask  # (S,): which stretches are part of a backward pass
    # Whether each layer, forward or backward, is heavy (layers_of()). Heavy layers are treated as
    # vDNN treats convolutions, or as SuperNeurons treats checkpoints.
    heavy: Mask

    def backward_begin(self, stretch: int) -> int:
        """The first stretch of the backward pass that this stretch of it belongs to."""
        others = np.flatnonzero(~self.backward[:stretch])
        return int(others[-1]) + 1 if len(others) else 0


def layers_of(profile: Profile) -> Pass:
    """Find the step's layers and the heavy ones among them. A module call of a forward pass is
    heavy if it takes at least the mean time of these calls."""
    stretches = profile.stretches
    layer = layer_of_stretch(profile)
    layer = layer - layer[:1]
    forward, backward = passes(profile)
    times = np.bincount(layer, stretches["time_ns"])
    begin = np.flatnonzero(np.diff(layer, prepend=-1))
    heavy: Mask = (stretches["kind"][begin] == Boundary.FORWARD) & forward[begin]
    if heavy.any():
        heavy &= times >= times[heavy].mean()
    # In the backward pass, a layer is heavy if the same layer is heavy in the forward pass.
    identity = stretches["layer"][begin]
    heavy |= (stretches["kind"][begin] == Boundary.BACKWARD) & np.isin(identity, identity[heavy])
    return Pass(layer, begin, forward, backward, heavy)


def saved(book: Book) -> list[Gap]:
    """The gaps between a tensor's last use in a forward pass and its first use in the backward
    pass, in the order in which the tensors are allocated."""
    profile = book.profile
    forward, backward = passes(profile)
    chosen = transient(profile)
    found = [
        gap
        for gap in gaps(book)
        if chosen[gap.tensor]
        and forward[book.stretch(gap, gap.since)]
        and backward[book.stretch(gap, gap.until)]
    ]
    slot = profile.tensors["slot"]
    return sorted(found, key=lambda gap: (int(slot[gap.tensor]), gap.since))


def passes(profile: Profile) -> tuple[Mask, Mask]:
    """(S,) each: which stretches are part of a forward pass, and which of a backward pass.

    The start of the step is part of a forward pass. A stretch that begins at a cut or outside all
    layers is part of the same pass as the stretch before it.

    In a backward pass, activation checkpointing runs layers again. Such a layer has run forward
    without a backward call since, unlike the layers of another forward pass (gradient
    accumulation). A layer without any backward call is part of the same pass as the layer after it.
    """
    kinds, layers = profile.stretches["kind"].tolist(), profile.stretches["layer"].tolist()
    calls = list(zip(kinds, layers, strict=True))
    called_back = {layer for kind, layer in calls if kind == Boundary.BACKWARD}
    pending: Counter[int] = Counter()  # forward calls of each layer without a backward call yet
    phases = np.zeros(len(calls), np.int64)
    phase = int(Boundary.STEP)
    undecided: int | None = None  # the first of the layers whose pass is that of the next layer
    for at, (kind, layer) in enumerate(calls):
        if kind == Boundary.FORWARD and phase == Boundary.BACKWARD and layer not in called_back:
            undecided = at if undecided is None else undecided
        elif kind == Boundary.FORWARD:
            if phase != Boundary.BACKWARD or not pending[layer]:
                phases[at if undecided is None else undecided : at] = phase = kind
                pending[layer] += 1
            undecided = None
        elif kind in (Boundary.STEP, Boundary.BACKWARD, Boundary.OPTIMIZER):
            pending[layer] -= kind == Boundary.BACKWARD and pending[layer] > 0
            phase, undecided = kind, None
        phases[at] = phase
    backward: Mask = phases == Boundary.BACKWARD
    return np.isin(phases, [Boundary.STEP, Boundary.FORWARD]), backward
