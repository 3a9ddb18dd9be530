# SPDX-License-Identifier: Apache-2.0
"""A plan: where every tensor of a step lives (layout) and when pages move (schedule).

Tiers are indices; 0 is the fastest. Boundaries are indices within the step; 0 is
the beginning of the step. The schedule is circular: the last boundary is followed by
boundary 0 of the next step. Fast memory is charged per resident page. A dead page is
charged until it is dropped or demoted.

In the shapes of arrays, S is the number of stretches (and of boundaries), T the number of tensors
and M the number of moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Space(IntEnum):
    """The address range in which a move lies. The move's offset counts from the range's base."""

    ARENA = 0  # offset from the base of the planned arena
    HEAP = 1  # offset from the base of the shim's heap, for moves of persistent tensors


SLOT_DTYPE = np.dtype(
    [
        ("bytes", "<u8"),  # size of the allocation; if it varies, the largest that was seen
        ("offset", "<u8"),
        ("flags", "<u4"),
        # The allocation can be smaller than `bytes`, by up to slack * protocol.TENSOR_BYTES_MIN.
        ("slack", "<u4"),
    ]
)  # struct sentinel_slot

SLOT_PLANNED = 1  # allocated at the slot's offset in the arena; without this flag, in the heap
SLOT_DROP = 2  # all pages are dropped at the tensor's death
SLOT_POPULATE = 4  # all pages are populated at the tensor's birth
SLOT_DROP_PARTS = 8  # the pages listed in Layout.parts are dropped at the tensor's death
SLOT_OPTIONAL = 16  # in some steps, the allocation is too small for the shim to see it

PART_DTYPE = np.dtype(
    [("offset", "<u8"), ("bytes", "<u8"), ("slot", "<u4"), ("reserved", "<u4")]
)  # struct sentinel_part: whole pages of the arena

MOVE_DTYPE = np.dtype(
    [
        ("boundary", "<u4"),  # may start when the process passes this boundary
        # The move should be complete at this boundary. If deadline <= boundary, the deadline is a
        # boundary of the next step.
        ("deadline", "<u4"),
        ("tensor", "<u4"),  # row in the profile's tensors
        ("space", "u1"),  # Space
        ("tier", "u1"),  # destination tier
        ("offset", "<u8"),  # bytes from the space's base, page-aligned
        ("bytes", "<u8"),  # whole pages
    ]
)


@dataclass(frozen=True)
class Region:
    """Part of the arena whose pages are all born on the same tier, unless tier is None."""

    offset: int  # bytes from the arena's base, page-aligned
    bytes: int  # whole pages
    tier: int | None  # None: the kernel chooses the node at first touch
    name: str  # shown to users


@dataclass(frozen=True)
class Range:
    """Part of the arena."""

    offset: int  # bytes from the arena's base
    bytes: int


@dataclass(frozen=True)
class Layout:
    """Where each allocation of a step lies, and what the shim does at births, deaths and
    boundaries."""

    # SLOT_DTYPE, one row per allocation of the step, indexed by the allocation cursor.
    slots: npt.NDArray[np.void]
    # Allocation cursors at which the step has extra boundaries (cuts), ascending.
    cuts: npt.NDArray[np.uint32]
    # Ascending by offset, not overlapping.
    regions: tuple[Region, ...]
    # (S,): for each boundary B, a boundary W. The process waits at B until all demotions of the
    # boundaries up to W are complete. If W > B, W is in the previous step. -1: the process does not
    # wait at B. At the deadline of a late promotion (Plan.late), the process may also wait for this
    # promotion.
    waits: npt.NDArray[np.int32]
    arena_bytes: int
    # Tier of pages that are born in the heap while the plan is live; None: the heap's memory policy
    # is not changed.
    heap_tier: int | None = None
    # PART_DTYPE, sorted by slot, then offset: the page ranges to drop at the deaths of the tensors
    # whose slots have SLOT_DROP_PARTS.
    parts: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, PART_DTYPE))
    # Ranges that may be backed by huge pages (plan/huge.py), ascending.
    huge: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Prediction:
    """The policy's prediction for a steady step."""

    step_ns: int
    promoted_bytes: int  # moved to the fast tier
    demoted_bytes: int  # moved to the slow tier
    peak_fast_bytes: int  # most fast memory charged at any moment
    fast_share: float  # share of sampled page accesses served by the fast tier, 0..1
    access_joules: float = 0.0  # energy of the step's accesses, without moves; see model/energy.py


@dataclass(frozen=True)
class Plan:
    """The layout and the schedule of a step, as made by a policy."""

    policy: str  # name of the policy
    budget_bytes: int  # fast memory for tensor pages
    layout: Layout
    # MOVE_DTYPE, sorted by boundary; demotions precede promotions at the same boundary.
    moves: npt.NDArray[np.void]
    # (T,): tier of each persistent tensor at boundary 0; the tier of most of its pages if they are
    # on both tiers. 255: not persistent, or not in `initial`. For display; `initial` is exact.
    initial_tier: npt.NDArray[np.uint8]
    # One short sentence per tensor: why it is placed where it is.
    reasons: tuple[str, ...]
    predicted: Prediction
    # Remarks about the plan as a whole, shown to users.
    notes: tuple[str, ...] = field(default=())
    # MOVE_DTYPE: page ranges of the persistent tensors with their tier at boundary 0.
    initial: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, MOVE_DTYPE))
    # (M,): whether each move is a promotion that is late by plan: there is room for it, but no time
    # before its deadline. Trials decide whether the process waits for such promotions
    # (plan/stall_trial.py). Empty: no move is late by plan.
    late: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
