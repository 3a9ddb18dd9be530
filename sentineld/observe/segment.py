# SPDX-License-Identifier: Apache-2.0
"""Shared memory that a traced process made: mapped so that nothing it does can end the daemon.

A segment that could shrink under the mapping (and so kill the daemon with SIGBUS)
is refused.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model import protocol


def map_segment(fd: int, name: str, least_bytes: int, most_bytes: int) -> mmap.mmap:
    """Map a sealed memfd for reading and writing; the caller keeps the descriptor.

    name: of the segment, for people. Raises SentinelError("protocol-mismatch").
    """
    try:
        size = os.fstat(fd).st_size
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise mismatch(name, "it is not sealed against shrinking")
        if not least_bytes <= size <= most_bytes:
            raise mismatch(name, f"it has {size} bytes")
        return mmap.mmap(fd, size)
    except OSError as error:
        # Not a memfd, or sealed against writing, or open for reading only.
        raise mismatch(name, f"{error.strerror}") from None


def require_header(header: np.void, name: str, magic: int) -> None:
    """Raise SentinelError("protocol-mismatch") unless a copied header is this protocol's."""
    if header["magic"] != magic:
        raise mismatch(name, "it is none")
    version = int(header["version"])
    if version != protocol.SHIM_VERSION:
        raise mismatch(name, f"it says version {version}, not {protocol.SHIM_VERSION}")


def mismatch(name: str, why: str) -> SentinelError:
    """The error of a segment that can't be used."""
    return SentinelError(
        "protocol-mismatch",
        f"the process's {name} segment can't be used: {why}",
        "run the training with the shim that came with this daemon",
    )
