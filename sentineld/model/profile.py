# SPDX-License-Identifier: Apache-2.0
"""The profile of one training step: the accesses of each tensor in each stretch.

A profile describes one steady step, which repeats: lifetimes may wrap around
the step's end. Births and deaths are given in two units. The packing of tensors
uses events: positions in the step's sequence of allocations and frees. The planning
of page moves uses stretches, because a move starts and has its deadline at a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """The use of a tensor."""

    ACTIVATION = 0
    SCRATCH = 1  # dies in the stretch of its birth
    GRADIENT = 2
    PERSISTENT = 3  # lives across steps: parameters, optimizer state


TENSOR_DTYPE = np.dtype(
    [
        ("slot", "<i4"),  # allocation cursor in the step; -1: persistent, allocated before the step
        ("kind", "u1"),  # Kind
        ("bytes", "<u8"),  # as requested
        ("address", "<u8"),  # in the profiled step; constant for persistent tensors
        ("birth_event", "<u4"),  # 0 if slot is -1
        ("death_event", "<u4"),  # exclusive; event_count if persistent; <= birth_event if `wraps`
        ("birth_stretch", "<u4"),
        ("death_stretch", "<u4"),  # inclusive; can be < birth_stretch if `wraps`
        ("wraps", "?"),  # whether the tensor lives across the step's end into the next step
        ("placed", "u1"),  # protocol.Placement: the tier that the script has asked for
    ]
)

ACCESS_DTYPE = np.dtype(
    [
        ("stretch", "<u4"),
        ("tensor", "<u4"),  # row in tensors
        ("bytes_read", "<u8"),
        ("bytes_written", "<u8"),
        # Distinct pages accessed, according to page sampling. Pages that sampling may have missed
        # are added, up to the number that the reported bytes fill (profile/missed.py).
        ("pages", "<u4"),
        # Accesses to these pages that page sampling saw, at least one for each page. A page can
        # have several accesses if it was armed again within the stretch (session/work/rearm.py).
        ("page_accesses", "<u4"),
    ]
)

STRETCH_DTYPE = np.dtype(
    [
        ("cursor", "<u4"),  # allocation cursor at the boundary
        ("event", "<u4"),  # number of events before the boundary
        ("layer", "<u2"),  # index in Profile.layers
        ("kind", "u1"),  # model.protocol.Boundary
        ("cut", "?"),  # the boundary is a planned cut
        ("time_ns", "<u8"),  # duration
    ]
)


def page_spans(
    table: npt.NDArray[np.void], page_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two arrays, one entry per row: the number of the first page of the row's memory, and the
    number of its last page plus 1.

    table: rows with `address` and `bytes`.
    """
    start = table["address"].astype(np.int64)
    end = start + table["bytes"].astype(np.int64)
    return start // page_bytes, -(-end // page_bytes)


@dataclass(frozen=True)
class Profile:
    """One steady step."""

    tensors: npt.NDArray[np.void]  # TENSOR_DTYPE
    accesses: npt.NDArray[np.void]  # ACCESS_DTYPE, one row per (stretch, tensor), sorted
    stretches: npt.NDArray[np.void]  # STRETCH_DTYPE in step order
    layers: tuple[str, ...]  # module paths by layer id
    slot_count: int  # allocations in the step
    event_count: int  # allocations and frees in the step
    page_bytes: int
    peak_bytes: int  # largest sum of the page-rounded sizes of live tensors, persistent included
    source: str
    """Names of the sources of accesses, joined by "+". "module" and "shim" report accesses; "none"
    means that neither of them reported one. Any other name is that of a backend that only checked
    the reported accesses."""
    unattributed_pages: int
    """Number of pairs (page, stretch) with an access to the page but no live tensor on it. For
    backends without epochs: number of accessed pages on which no tensor of the step lies."""
    heap_base: int = 0  # address of the shim's heap, which holds the persistent tensors
    untold_pages: int = 0
    """Number of pages to which a backend without epochs observed an access although the framework
    reported no access to their tensors; see profile/window_check.py."""

    @property
    def stretch_count(self) -> int:
        """Number of stretches; equal to the number of boundaries."""
        return len(self.stretches)

    @property
    def step_ns(self) -> int:
        """The time of the step. In a session's profile, this is the time with all memory fast."""
        return int(self.stretches["time_ns"].sum())
