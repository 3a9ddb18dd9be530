# SPDX-License-Identifier: Apache-2.0
"""Raw observations: what the shim's ring and the kernel module's log carry.

The field layouts are those of sentineld/shim/native/protocol.h (struct
sentinel_record) and kmod/sentinel_uapi.h (struct sentinel_access).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
    [("page", "<u8"), ("epoch", "<u4"), ("node", "u1"), ("flags", "u1"), ("reserved", "<u2")]
)
"""One record of the module's access log; 16 bytes."""

ACCESS_WRITE = 1
ACCESS_BIRTH = 2
ACCESS_RESIDENCY = 128

OP_ACCESS_DTYPE = np.dtype(
    [("time_ns", "<u8"), ("address", "<u8"), ("bytes", "<u8"), ("write", "?"), ("estimated", "?")]
)
"""A tensor that an operator reads or writes, seen by torch.profiler in the access step;
time_ns on CLOCK_MONOTONIC, address the begin of the tensor's storage."""

TRACE_VERSION = 1

Records = npt.NDArray[np.void]


@dataclass
class Trace:
    """What a session recorded over whole steps.

    records: RECORD_DTYPE, in ring order, beginning with a STEP record.
    samples: SAMPLE_DTYPE, in log order; empty without a page backend.
    op_accesses: OP_ACCESS_DTYPE by time; empty where the framework could not tell.
    layers: module path by layer id.
    ranges: (start, bytes) of the memory that tensors can lie in, in bytes.
    meta: pid, page_bytes, torch version and the like; JSON-serialisable.
    """

    records: Records
    samples: Records
    op_accesses: Records
    layers: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    page_bytes: int = 4096
    meta: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the trace as a versioned .npz file."""
        np.savez_compressed(
            path,
            version=np.array(TRACE_VERSION),
            records=self.records,
            samples=self.samples,
            op_accesses=self.op_accesses,
            layers=np.array(self.layers, dtype=np.str_),
            ranges=np.array(self.ranges, dtype=np.uint64).reshape(-1, 2),
            page_bytes=np.array(self.page_bytes),
            meta=np.array([f"{key}={value}" for key, value in self.meta.items()], dtype=np.str_),
        )
