# SPDX-License-Identifier: Apache-2.0
"""The passes of a step (forward, backward, optimizer) as the swapping policies see them, the layers
of the step, and the gaps of the tensors that the forward pass saves for the backward pass."""

from __future__ import annotations

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

    In a backward pass, activation checkpointing runs layers again. These calls are part of the
    backward pass. The forward calls between two backward calls are another forward pass (gradient
    accumulation) if they include the layer that was called backward first, or a layer that has not
    run in the forward pass before.
    """
    kinds, layers = profile.stretches["kind"].tolist(), profile.stretches["layer"].tolist()
    phases = np.zeros(len(kinds), np.int64)
    phase = int(Boundary.STEP)
    ran = set[int]()  # the layers of the latest forward pass
    first = -1  # the first layer of the latest backward pass
    begin: int | None = None  # the first forward call since a backward call
    for at, (kind, layer) in enumerate(zip(kinds, layers, strict=True)):
        if kind == Boundary.FORWARD and phase == Boundary.BACKWARD:
            begin = at if begin is None else begin
            if layer == first or layer not in ran:
                phases[begin:at] = phase = kind
                ran = set(layers[begin:at])
        elif kind in (Boundary.STEP, Boundary.FORWARD, Boundary.BACKWARD, Boundary.OPTIMIZER):
            if kind == Boundary.FORWARD != phase:
                ran = set()
            elif kind == Boundary.BACKWARD != phase:
                first = layer
            phase, begin = kind, None
        if phase == Boundary.FORWARD:
            ran.add(layer)
        phases[at] = phase
    backward: Mask = phases == Boundary.BACKWARD
    return np.isin(phases, [Boundary.STEP, Boundary.FORWARD]), backward
