# SPDX-License-Identifier: Apache-2.0
"""Names and kinds of tensors for people, and the phases of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Boundary
from sentineld.profile.trace import Trace

KINDS = (
    "parameter",
    "optimizer",
    "buffer",
    "persistent",
    "gradient",
    "activation",
    "scratch",
)
"""As people know them: Kind's, and persistent tensors by their role where it is known."""

_OF_KIND = {
    Kind.PERSISTENT: "persistent",
    Kind.GRADIENT: "gradient",
    Kind.ACTIVATION: "activation",
    Kind.SCRATCH: "scratch",
}
_PHASES = {
    Boundary.FORWARD: "forward",
    Boundary.BACKWARD: "backward",
    Boundary.OPTIMIZER: "optimizer",
}


@dataclass(frozen=True)
class Labels:
    """One entry a tensor. kinds: indices of KINDS. names: the framework's, else the layer that
    gave birth to it and a number; lasting tensors without a name go by their address."""

    kinds: npt.NDArray[np.int64]
    names: tuple[str, ...]

    def kind(self, tensor: int) -> str:
        """A tensor's kind."""
        return KINDS[int(self.kinds[tensor])]


@dataclass(frozen=True)
class Phase:
    """Consecutive stretches first to past (exclusive) of one phase of the step."""

    name: str
    first: int
    past: int


def label(trace: Trace, profile: Profile) -> Labels:
    """Labels of the profile's tensors."""
    kinds, names, places = [], [], stretch_places(profile)
    born_in: dict[str, int] = {}
    for tensor in profile.tensors:
        kind = _OF_KIND[Kind(int(tensor["kind"]))]
        # Names were taken between two steps: what died before has none, whoever lay there.
        lasting = kind == "persistent" or bool(tensor["wraps"])
        named = trace.names.get(int(tensor["address"])) if lasting else None
        if named is not None:
            if kind == "persistent" and named.role in KINDS:
                kind = named.role
            name = f"{named.name} (gradient)" if named.role == "gradient" else named.name
        elif tensor["slot"] < 0:
            name = f"at {int(tensor['address']):#x}"
        else:
            layer = places[int(tensor["birth_stretch"])]
            number = born_in[layer] = born_in.get(layer, 0) + 1
            name = f"{layer} #{number}"
        kinds.append(KINDS.index(kind))
        names.append(name)
    return Labels(np.array(kinds, np.int64), tuple(names))


def phases(profile: Profile) -> tuple[Phase, ...]:
    """Forward, backward and optimizer as they follow each other; what comes before them (loading
    data, setting gradients to zero) is called "begin"."""
    current = "begin"
    found: list[Phase] = []
    for stretch, kind in enumerate(profile.stretches["kind"].tolist()):
        name = _PHASES.get(kind, current)
        if not found or name != current:
            found.append(Phase(name, stretch, stretch))
            current = name
        found[-1] = Phase(name, found[-1].first, stretch + 1)
    return tuple(found)


def stretch_places(profile: Profile) -> tuple[str, ...]:
    """What each stretch is, for people: layer and phase, or the layer that it comes after."""
    places: list[str] = []
    layer_before = ""
    for phase in phases(profile):
        for row in profile.stretches[phase.first : phase.past]:
            layer = _layer_name(profile, int(row["layer"]))
            name = f"{layer} {phase.name}" if layer else phase.name
            if not layer and layer_before and phase.name in ("forward", "backward"):
                name = f"after {layer_before} {phase.name}"
            if row["kind"] == Boundary.CUT:
                name += f", cut {int(row['cursor'])}"
            layer_before = layer or layer_before
            places.append(name)
    return tuple(places)


def layer_label(profile: Profile, stretch: int, width: int = 28) -> str:
    """A stretch's layer, shortened from the left, where names of modules differ least."""
    name = _layer_name(profile, int(profile.stretches["layer"][stretch]))
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def _layer_name(profile: Profile, layer: int) -> str:
    return profile.layers[layer] if layer < len(profile.layers) else f"layer {layer}"
