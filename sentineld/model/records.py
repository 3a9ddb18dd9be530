# SPDX-License-Identifier: Apache-2.0
"""Raw observations: records of the shim's ring and of the kernel module's access log.

The field layouts are those of sentineld/shim/native/protocol.h (struct
sentinel_record) and kmod/sentinel_uapi.h (struct sentinel_access).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 4096
"""Bytes of a small page on x86-64. The kernel module and the shim count in such pages."""

RECORD_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),  # CLOCK_MONOTONIC
        ("address", "<u8"),  # ALLOC, FREE: the tensor's address; BOUNDARY, STEP: the epoch
        ("bytes", "<u8"),  # ALLOC, FREE: the size; BOUNDARY: the cursor; STEP: the step's number
        ("value", "<u4"),  # ALLOC, FREE: cursor of the allocation; BOUNDARY: the boundary's index
        ("layer", "<u2"),
        ("event", "u1"),  # model.protocol.Event
        ("detail", "u1"),  # model.protocol.Alloc, Boundary or Placement
    ]
)
"""One record of the shim's ring; 32 bytes. The fields of SERVED and SERVED_FAST records have other
meanings; see enum sentinel_event in shim/native/protocol.h, which also describes PLACED."""

SAMPLE_DTYPE = np.dtype(
    [
        ("page", "<u8"),  # page number; with ACCESS_RESIDENCY: number of pages on the node
        ("epoch", "<u4"),
        ("node", "u1"),  # 255: unknown
        ("flags", "u1"),  # ACCESS_*
        ("more_pages", "<u2"),  # number of following pages that the record represents, too
    ]
)
"""One record of the module's access log; 16 bytes."""

ACCESS_WRITE = 1
ACCESS_BIRTH = 2
"""First touch: the page was absent, or a write hit the zero page."""
ACCESS_UNKNOWN = 4
"""No access was seen, but one may have been missed. With ACCESS_AGAIN, an access was seen, but a
later write may have been missed."""
ACCESS_AGAIN = 8
"""Not the page's first record in the epoch."""
ACCESS_AGED = 16
"""PageSampler.age() found the page's accessed bit set: the page was accessed after the previous
call of age(). The epoch of the access is unknown."""
ACCESS_RESIDENCY = 128
"""The record has the number of pages that were resident on a node when the epoch began."""
NO_ACCESS = ACCESS_UNKNOWN | ACCESS_AGED | ACCESS_RESIDENCY
"""A record with any of these flags does not report an access in a known epoch."""

OP_ACCESS_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),  # CLOCK_MONOTONIC
        ("address", "<u8"),  # start of the tensor's storage
        ("bytes", "<u8"),
        ("write", "?"),
        ("estimated", "?"),  # the access or its size is assumed, not reported by the profiler
    ]
)
"""One read or write of a tensor by an operator in the access step. Either torch.profiler reports
it, or it is assumed (`estimated`)."""

PAGE_RUN_DTYPE = np.dtype(
    [
        ("page", "<i8"),  # first page number
        ("pages", "<i8"),
        ("resident", "?"),  # in memory and mapped; otherwise swapped out
    ]
)
"""Adjacent anonymous pages of a process that are all resident, or all swapped out."""

Records = npt.NDArray[np.void]


class MemoryMapping(NamedTuple):
    """A memory mapping of a process."""

    start: int
    end: int  # exclusive
    name: str  # as in /proc/PID/maps


class TensorName(NamedTuple):
    """The framework's name of a tensor that outlives a step."""

    role: str  # "parameter", "buffer", "gradient" or "optimizer"
    name: str  # path of the parameter or buffer; for optimizer state, followed by the state's name


@dataclass(frozen=True)
class OpAccesses:
    """The operators' accesses in an access step, as the shim reports them."""

    step: int  # number of the step; -1: missing in the shim's message
    rows: Records  # OP_ACCESS_DTYPE
    names: Mapping[int, TensorName] = field(default_factory=dict)  # by address of the tensor
    refused: int = 0  # number of rows that were not read, because there are too many; rows is empty
