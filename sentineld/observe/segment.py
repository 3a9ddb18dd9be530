# SPDX-License-Identifier: Apache-2.0
"""Safe mapping of shared memory that a training process created.

A segment that can shrink is refused: an access beyond its end would kill the
daemon with SIGBUS. Memory of hugetlbfs is refused, too: if the process has given
back a huge page and the kernel has no free huge page, an access to the page would
also cause SIGBUS.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model import protocol
from sentineld.observe.received import HUGETLBFS_MAGIC, file_system, seals


def map_segment(fd: int, name: str, least_bytes: int, most_bytes: int) -> mmap.mmap:
    """Map a sealed memfd for reading and writing; the caller closes the descriptor.

    name: the segment's name in error messages.
    least_bytes, most_bytes: limits of the segment's size.

    Raises SentinelError "protocol-mismatch" if the segment cannot be used, and OSError if the
    daemon has no free descriptor or too little memory.
    """
    # This check comes first, because other calls can block if the file is not shared memory.
    found = seals(fd)
    if found is None:
        raise mismatch(name, "it is not a memfd")
    if not found & fcntl.F_SEAL_SHRINK:
        raise mismatch(name, "it is not sealed against shrinking")
    if file_system(fd) == HUGETLBFS_MAGIC:
        raise mismatch(name, "it consists of huge pages of hugetlbfs")
    try:
        size = os.fstat(fd).st_size
        if not least_bytes <= size <= most_bytes:
            raise mismatch(name, f"its size is {size} bytes")
        return mmap.mmap(fd, size)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        # The memfd is sealed against writing, or its descriptor is open for reading only.
        raise mismatch(name, f"{error.strerror}") from None


def require_header(header: np.void, name: str, magic: int) -> None:
    """Raise SentinelError "protocol-mismatch" unless a copied header has this magic number and the
    daemon's protocol version."""
    if header["magic"] != magic:
        raise mismatch(name, "it has another magic number")
    version = int(header["version"])
    if version != protocol.SHIM_VERSION:
        raise mismatch(name, f"its version is {version}, not {protocol.SHIM_VERSION}")


def mismatch(name: str, why: str) -> SentinelError:
    """The error for an unusable segment."""
    return SentinelError(
        "protocol-mismatch",
        f"the process's {name} segment can't be used: {why}",
        "run the training with the shim that came with this daemon",
    )
