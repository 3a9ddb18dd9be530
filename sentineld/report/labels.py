# SPDX-License-Identifier: Apache-2.0
"""Names and kinds of tensors for display, and the phases of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Boundary
from sentineld.model.records import TensorName
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
"""Kinds for display: those of Kind, and the roles of persistent tensors. A persistent tensor whose
role is unknown is shown as "persistent"."""

KIND_COLOURS = {
    "parameter": "#4e79a7",
    "optimizer": "#76b7b2",
    "buffer": "#9c9ede",
    "persistent": "#2f4b7c",
    "gradient": "#e15759",
    "activation": "#f28e2b",
    "scratch": "#bab0ac",
}
"""The colour of each kind in pictures and HTML pages."""

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
    """Labels, one per tensor of a profile."""

    kinds: npt.NDArray[np.int64]  # indices in KINDS
    names: tuple[str, ...]
    """The framework's name for the tensor. A tensor without such a name is named by its address if
    the step does not allocate it, otherwise by the layer of its birth and a number."""

    def kind(self, tensor: int) -> str:
        """The name of a tensor's kind."""
        return KINDS[int(self.kinds[tensor])]


@dataclass(frozen=True)
class LayerRun:
    """Consecutive stretches of one layer in one phase."""

    name: str  # the layer's name, as shortened by layer_label()
    first: int  # the first stretch
    past: int  # the stretch after the last one


@dataclass(frozen=True)
class Phase:
    """Consecutive stretches of one phase of the step."""

    name: str
    first: int  # the first stretch
    past: int  # the stretch after the last one


def label(trace: Trace, profile: Profile) -> Labels:
    """Labels of the tensors of a trace's profile."""
    return label_tensors(profile, trace.names)


def label_tensors(profile: Profile, known: Mapping[int, TensorName]) -> Labels:
    """Labels of a profile's tensors.

    known: the framework's names by address, as of the end of the profiled step.
    """
    kinds, names, places = [], [], stretch_places(profile)
    born_in: dict[str, int] = {}
    for tensor in profile.tensors:
        kind = _OF_KIND[Kind(int(tensor["kind"]))]
        # Names were recorded by address between two steps, so only tensors that were live between
        # the two steps have names. A tensor that had the same address at another time must not get
        # the name.
        in_both_steps = kind == "persistent" or bool(tensor["wraps"])
        named = known.get(int(tensor["address"])) if in_both_steps else None
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
    """The phases forward, backward and optimizer in step order.

    Stretches before the first phase (loading data, zeroing gradients) are the phase "begin".
    """
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
    """The layer and phase of each stretch.

    In the forward and backward phases, the label of a stretch without a layer contains the last
    layer before it: "after LAYER forward".
    """
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
    """Name of a stretch's layer, shortened from the left, where module names differ least."""
    name = _layer_name(profile, int(profile.stretches["layer"][stretch]))
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def layer_runs(profile: Profile) -> tuple[LayerRun, ...]:
    """The stretches of the step, in runs of the same layer and phase. A run in no layer has the
    name ""."""
    runs: list[LayerRun] = []
    for phase in phases(profile):
        for stretch in range(phase.first, phase.past):
            name = layer_label(profile, stretch)
            if runs and runs[-1].name == name and runs[-1].first >= phase.first:
                runs[-1] = LayerRun(name, runs[-1].first, stretch + 1)
            else:
                runs.append(LayerRun(name, stretch, stretch + 1))
    return tuple(runs)


def _layer_name(profile: Profile, layer: int) -> str:
    return profile.layers[layer] if layer < len(profile.layers) else f"layer {layer}"
