# SPDX-License-Identifier: Apache-2.0
"""A plan: where every tensor of a step lives (layout) and when pages move (schedule).

Tiers are indices, 0 the fastest. Boundaries are indices within the step, 0 its
begin; the schedule is a circle. Fast memory is charged per resident page:
arena pages after their tenant's death count until they are dropped or moved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Space(IntEnum):
    """What a move's offset counts from."""

    ARENA = 0  # the planned arena's base
    HEAP = 1  # the shim's heap base; persistent tensors live there


SLOT_DTYPE = np.dtype(
    [("bytes", "<u8"), ("offset", "<u8"), ("flags", "<u4"), ("reserved", "<u4")]
)  # struct sentinel_slot

SLOT_PLANNED = 1
SLOT_DROP = 2
SLOT_POPULATE = 4
SLOT_DROP_PARTS = 8

PART_DTYPE = np.dtype(
    [("offset", "<u8"), ("bytes", "<u8"), ("slot", "<u4"), ("reserved", "<u4")]
)  # struct sentinel_part: whole pages of the arena

MOVE_DTYPE = np.dtype(
    [
        ("boundary", "<u4"),  # may start when this boundary passes
        ("deadline", "<u4"),  # should be complete when this one passes; may be < boundary (wraps)
        ("tensor", "<u4"),  # row in the profile's tensors
        ("space", "u1"),  # Space
        ("tier", "u1"),  # to
        ("offset", "<u8"),  # bytes from the space's base, page-aligned
        ("bytes", "<u8"),  # whole pages
    ]
)


@dataclass(frozen=True)
class Region:
    """Part of the arena whose pages are born on one tier (None: the kernel's first touch)."""

    offset: int
    bytes: int
    tier: int | None
    name: str


@dataclass(frozen=True)
class Range:
    """Part of the arena."""

    offset: int
    bytes: int


@dataclass(frozen=True)
class Layout:
    """slots: SLOT_DTYPE by cursor; cuts: cursors that are boundaries, rising; waits: for each
    boundary the boundary whose moves must be complete before it passes, -1: none (a value
    greater than the boundary's own index means one of the step before). parts: PART_DTYPE by slot
    and offset, what slots with SLOT_DROP_PARTS give back. huge: what may be made of huge pages
    (plan/huge.py), rising."""

    slots: npt.NDArray[np.void]
    cuts: npt.NDArray[np.uint32]
    regions: tuple[Region, ...]
    waits: npt.NDArray[np.int32]
    arena_bytes: int
    heap_tier: int | None = None  # births in the heap while managed; None: leave as it is
    parts: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PART_DTYPE))
    huge: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """What the policy expects of a steady step."""

    step_ns: int
    promoted_bytes: int
    demoted_bytes: int
    peak_fast_bytes: int
    fast_share: float  # of sampled page accesses; 0..1


@dataclass(frozen=True)
class Plan:
    """policy's answer. moves: MOVE_DTYPE sorted by boundary, demotions first within one.
    initial_tier: for each tensor the tier of a persistent one at boundary 0 (255: not persistent
    or left alone; of one that is split, the tier of most of it). initial: MOVE_DTYPE rows, the page
    ranges of persistent tensors and the tier where each is at boundary 0, exact. reasons: for
    each tensor why it is where it is, one short sentence. stalls_for_promotions: waits
    are for promotions, too, that are late and have room; else these are served slow."""

    policy: str
    budget_bytes: int
    layout: Layout
    moves: npt.NDArray[np.void]
    initial_tier: npt.NDArray[np.uint8]
    reasons: tuple[str, ...]
    predicted: Prediction
    notes: tuple[str, ...] = field(default=())
    initial: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, MOVE_DTYPE))
    stalls_for_promotions: bool = False
