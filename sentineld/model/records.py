# SPDX-License-Identifier: Apache-2.0
"""Raw observations: what the shim's ring and the kernel module's log carry.

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
"""Bytes of a small page on x86-64, in which the kernel module and the shim count."""

RECORD_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("address", "<u8"),
        ("bytes", "<u8"),
        ("value", "<u4"),
        ("layer", "<u2"),
        ("event", "u1"),
        ("detail", "u1"),
    ]
)
"""One ring record of the shim; 32 bytes."""

SAMPLE_DTYPE = np.dtype(
    [("page", "<u8"), ("epoch", "<u4"), ("node", "u1"), ("flags", "u1"), ("more_pages", "<u2")]
)
"""One record of the module's access log; 16 bytes."""

ACCESS_WRITE = 1
ACCESS_BIRTH = 2
ACCESS_UNKNOWN = 4
"""No access was seen, but one may have been missed, in this page and more_pages after it."""
ACCESS_AGAIN = 8
"""Not the page's first record in its epoch."""
ACCESS_AGED = 16
"""The CPU has marked the page, and more_pages after it, as accessed since the last age()."""
ACCESS_RESIDENCY = 128
NO_ACCESS = ACCESS_UNKNOWN | ACCESS_AGED | ACCESS_RESIDENCY
"""Records with any of these flags are no access of an epoch."""

OP_ACCESS_DTYPE = np.dtype(
    [("time_ns", "<u8"), ("address", "<u8"), ("bytes", "<u8"), ("write", "?"), ("estimated", "?")]
)
"""A tensor that an operator reads or writes, seen by torch.profiler in the access step;
time_ns on CLOCK_MONOTONIC, address the begin of the tensor's storage."""

Records = npt.NDArray[np.void]


class Mapped(NamedTuple):
    """A mapping of the process: start to end (exclusive), named as /proc/PID/maps does."""

    start: int
    end: int
    name: str


class Named(NamedTuple):
    """What the framework calls a tensor that outlives a step.

    role: "parameter", "buffer", "gradient" or "optimizer"; name: the parameter's path, for an
    optimizer's state with the state's own name behind it.
    """

    role: str
    name: str


@dataclass(frozen=True)
class OpAccesses:
    """What the shim says of an access step. rows: OP_ACCESS_DTYPE; names: by address."""

    step: int
    rows: Records
    names: Mapping[int, Named] = field(default_factory=dict)
