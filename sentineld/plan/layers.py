# SPDX-License-Identifier: Apache-2.0
"""Layers of a step (module calls): their stretches, and the tensors that live within one layer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers
from sentineld.model.profile import Kind, Profile
from sentineld.model.protocol import Boundary


def layer_of_stretch(profile: Profile) -> Integers:
    """(S,): the ordinal of each stretch's layer; a cut does not begin a new layer."""
    ordinal: Integers = np.cumsum(profile.stretches["kind"] != Boundary.CUT)
    return ordinal


def layer_name(profile: Profile, stretch: int) -> str:
    """The name of a stretch's layer; "" if it is unknown. The process sends the layers' names
    independently of the steps, so a name can be missing."""
    layer = int(profile.stretches["layer"][stretch])
    return profile.layers[layer] if layer < len(profile.layers) else ""


def short_lived(profile: Profile) -> npt.NDArray[np.bool_]:
    """(T,): which tensors die in the layer of their birth."""
    tensors = profile.tensors
    layer = layer_of_stretch(profile)
    same = layer[tensors["birth_stretch"]] == layer[tensors["death_stretch"]]
    short: npt.NDArray[np.bool_] = (
        (tensors["slot"] >= 0)
        & ~tensors["wraps"]
        & same
        & (tensors["death_event"] > tensors["birth_event"])
        & (tensors["kind"] != Kind.PERSISTENT)
    )
    return short
