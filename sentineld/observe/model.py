# SPDX-License-Identifier: Apache-2.0
"""Raw observations: what the shim's ring and the kernel module's log carry.

The field layouts are those of sentineld/shim/native/protocol.h (struct
sentinel_record) and kmod/sentinel_uapi.h (struct sentinel_access).
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sentineld.errors import SentinelError

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

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a trace that save() wrote.

        Raises FileNotFoundError, and SentinelError if the file is damaged, of another version,
        or not shaped as the class says.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                version = int(file["version"])
                if version != TRACE_VERSION:
                    raise _no_trace(path, f"it has version {version}, not {TRACE_VERSION}")
                tables = {
                    name: _table(path, name, file[name], dtype)
                    for name, dtype in (
                        ("records", RECORD_DTYPE),
                        ("samples", SAMPLE_DTYPE),
                        ("op_accesses", OP_ACCESS_DTYPE),
                    )
                }
                ranges = file["ranges"]
                if ranges.ndim != 2 or ranges.shape[1] != 2:
                    raise _no_trace(path, f"ranges have the shape {ranges.shape}")
                meta = (str(entry).partition("=") for entry in file["meta"])
                return cls(
                    **tables,
                    layers=tuple(str(name) for name in file["layers"]),
                    ranges=tuple((int(start), int(size)) for start, size in ranges),
                    page_bytes=int(file["page_bytes"]),
                    meta={key: value for key, _, value in meta},
                )
        except FileNotFoundError:
            raise
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise _no_trace(path, f"{type(error).__name__}: {error}") from None


def _table(path: Path, name: str, table: Records, dtype: np.dtype[np.void]) -> Records:
    if table.dtype != dtype or table.ndim != 1:
        raise _no_trace(path, f"{name} is {table.dtype} of the shape {table.shape}")
    return table


def _no_trace(path: Path, what: str) -> SentinelError:
    return SentinelError("failed", f"{path} is no trace: {what}", "record it again")
