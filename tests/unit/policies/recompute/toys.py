# SPDX-License-Identifier: Apache-2.0
"""A step of three layers in which a tensor can be computed again."""

from __future__ import annotations

import numpy as np

from sentineld.model.profile import ACCESS_DTYPE, STRETCH_DTYPE, TENSOR_DTYPE, Kind, Profile
from sentineld.model.protocol import Boundary
from tests.unit.plan.toys import HEAP, PAGE

UNIT = 64 * PAGE
"""Size of the tensors, except for the scratch tensor."""
X, S, Y, Z, G, W = range(6)
TIMES_NS = (50_000, 1_000_000, 10_000, 50_000, 50_000, 50_000, 50_000)


def layered_profile() -> Profile:
    """Seven stretches. W is a persistent weight. w: written, r: read.

    stretch    0 step  1 layer a  2 layer b        3 layer c  4 backward c  5 backward b  6 optim.
    x                  born w     r                                         r dies
    scratch                       born w r dies
    y                             born    w        r                        r dies
    z                                              born w     r dies
    g                                                         born w                      r dies
    W                             r                                         r             w

    events             0          1 2 3            4          5 6           7 8           9
                       x          s y s            z          g z           y x           g
    """
    tensors = np.zeros(6, TENSOR_DTYPE)
    tensors["slot"] = [0, 1, 2, 3, 4, -1]
    tensors["kind"] = [
        Kind.ACTIVATION,
        Kind.SCRATCH,
        Kind.ACTIVATION,
        Kind.ACTIVATION,
        Kind.GRADIENT,
        Kind.PERSISTENT,
    ]
    tensors["bytes"] = [UNIT, 4 * PAGE, UNIT, UNIT, UNIT, UNIT]
    tensors["address"] = HEAP + np.array([100, 200, 300, 400, 500, 0]) * PAGE
    tensors["birth_event"] = [0, 1, 2, 4, 5, 0]
    tensors["death_event"] = [8, 3, 7, 6, 9, 10]
    tensors["birth_stretch"] = [1, 2, 2, 3, 4, 0]
    tensors["death_stretch"] = [5, 2, 5, 4, 6, 6]
    accessed = [
        (1, X, "w"),
        (2, X, "r"),
        (2, S, "rw"),
        (2, Y, "w"),
        (2, W, "r"),
        (3, Y, "r"),
        (3, Z, "w"),
        (4, Z, "r"),
        (4, G, "w"),
        (5, X, "r"),
        (5, Y, "r"),
        (5, W, "r"),
        (6, G, "r"),
        (6, W, "w"),
    ]
    return Profile(
        tensors=tensors,
        accesses=np.array([row(tensors, *one) for one in accessed], ACCESS_DTYPE),
        stretches=_stretches(),
        layers=("", "a", "b", "c"),
        slot_count=5,
        event_count=10,
        page_bytes=PAGE,
        peak_bytes=5 * UNIT,
        source="shim",
        unattributed_pages=0,
        heap_base=HEAP,
    )


def row(tensors: np.ndarray, stretch: int, tensor: int, how: str) -> tuple[int, ...]:
    """An access of all bytes of a tensor."""
    size = int(tensors["bytes"][tensor])
    pages = size // PAGE
    return stretch, tensor, size * ("r" in how), size * ("w" in how), pages, pages


def _stretches() -> np.ndarray:
    stretches = np.zeros(7, STRETCH_DTYPE)
    stretches["event"] = [0, 0, 1, 4, 5, 7, 9]
    stretches["cursor"] = [0, 0, 1, 3, 4, 5, 5]
    stretches["layer"] = [0, 1, 2, 3, 3, 2, 0]
    stretches["kind"] = [
        Boundary.STEP,
        *[Boundary.FORWARD] * 3,
        *[Boundary.BACKWARD] * 2,
        Boundary.OPTIMIZER,
    ]
    stretches["time_ns"] = TIMES_NS
    return stretches
