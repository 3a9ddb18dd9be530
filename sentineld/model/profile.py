# SPDX-License-Identifier: Apache-2.0
"""The profile of one training step: tensors x stretches.

A profile describes one steady step as a circle: the step after it does the
same. Times of birth and death are positions in the step's sequence of
allocations and frees (events), so that tensors of one stretch can be packed;
stretches say the same in the coarser unit in which pages move.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt


class Kind(IntEnum):
    """What a tensor is for. PERSISTENT ones outlive the step (parameters, optimizer state)."""

    ACTIVATION = 0
    SCRATCH = 1  # dies in the stretch in which it was born
    GRADIENT = 2
    PERSISTENT = 3


TENSOR_DTYPE = np.dtype(
    [
        ("slot", "<i4"),  # cursor of its allocation in the step; -1: persistent, allocated before
        ("kind", "u1"),  # Kind
        ("bytes", "<u8"),  # as asked for
        ("address", "<u8"),  # where it lay in the profiled step; persistent tensors lie there still
        ("birth_event", "<u4"),  # persistent: 0
        ("death_event", "<u4"),  # exclusive; persistent: event_count; <= birth_event: wraps
        ("birth_stretch", "<u4"),
        ("death_stretch", "<u4"),  # inclusive: where it is freed; may be < birth (wraps)
        ("wraps", "?"),  # lives over the step's end into the next step
    ]
)

ACCESS_DTYPE = np.dtype(
    [
        ("stretch", "<u4"),
        ("tensor", "<u4"),  # row in tensors
        ("bytes_read", "<u8"),
        ("bytes_written", "<u8"),
        ("pages", "<u4"),  # distinct pages seen accessed by page sampling
    ]
)

STRETCH_DTYPE = np.dtype(
    [
        ("cursor", "<u4"),  # allocations since step begin when the boundary passes
        ("event", "<u4"),  # events since step begin when the boundary passes
        ("layer", "<u2"),
        ("kind", "u1"),  # enum sentinel_boundary
        ("cut", "?"),  # exists only by a planned cut of the allocation cursor
        ("time_ns", "<u8"),  # duration
    ]
)


def page_spans(
    table: npt.NDArray[np.void], page_bytes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """First and past-the-end page number of each row of a table with `address` and `bytes`."""
    start = table["address"].astype(np.int64)
    end = start + table["bytes"].astype(np.int64)
    return start // page_bytes, -(-end // page_bytes)


@dataclass(frozen=True)
class Profile:
    """One steady step. tensors: TENSOR_DTYPE; accesses: ACCESS_DTYPE sorted by (stretch,
    tensor), one row a pair; stretches: STRETCH_DTYPE in step order."""

    tensors: npt.NDArray[np.void]
    accesses: npt.NDArray[np.void]
    stretches: npt.NDArray[np.void]
    layers: tuple[str, ...]
    slot_count: int
    event_count: int
    page_bytes: int
    peak_bytes: int  # largest sum of live page-rounded tensor bytes, persistent ones included
    source: str  # where the accesses come from: "module", "shim", "module+shim"; others check them
    unattributed_pages: int  # sampled page x stretch pairs (pages) that met no live tensor
    heap_base: int = 0  # address of the shim's heap; persistent tensors lie at offsets from it
    untold_pages: int = 0  # seen accessed where the framework told of no access; see window.py

    @property
    def stretch_count(self) -> int:
        """Number of stretches; equal to the number of boundaries."""
        return len(self.stretches)
