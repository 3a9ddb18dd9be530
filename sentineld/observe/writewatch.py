# SPDX-License-Identifier: Apache-2.0
"""The common part of the backends that see only writes and use descriptors from the process."""

from __future__ import annotations

import errno
import os

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.records import PAGE_BYTES
from sentineld.observe.backend import Capabilities, Ranges, Resolution, Target
from sentineld.observe.writefds import WriteFds


class WriteWatch:
    """Base of the watches that see only writes. Owns the descriptors that the process has sent."""

    def __init__(self, target: Target, way: str, tool: str, hint: str) -> None:
        """Take over the target's descriptors.

        way: the kind of descriptors that this backend needs, as in WriteFds.way.
        tool: the backend's name in the error message.
        hint: the hint of the SentinelError that is raised if the process sent no such descriptors.
        """
        writes = target.writes or WriteFds()
        if writes.way != way:
            raise SentinelError(
                "failed",
                f"process {target.pid} can't be watched by {tool}: {writes.without(way)}",
                hint,
            )
        self._writes = writes
        self._ranges: list[tuple[int, int]] = []

    def begin(self, ranges: Ranges) -> None:
        """Begin a window over these ranges."""
        self._ranges = sorted(ranges)

    def poll(self) -> None:
        """Do nothing: the kernel keeps track of written pages until the window ends."""

    def close(self) -> None:
        """Close the descriptors."""
        self._writes.close()


WRITE_CAPABILITIES = Capabilities(
    reads=False,
    writes=True,
    distinguishes_writes=True,
    births=False,
    nodes=False,
    frequency=False,
    exact=True,
    epochs=False,
    resolution=Resolution.PAGE,
)
"""The capabilities of a backend that sees exactly the written pages of a step, and no reads."""


def read_pagemap(pagemap_fd: int, start: int, length_bytes: int) -> npt.NDArray[np.uint64]:
    """Read a range's 64-bit pagemap entries. Raises ProcessLookupError if the process is gone."""
    size = length_bytes // PAGE_BYTES * 8
    data = os.pread(pagemap_fd, size, start // PAGE_BYTES * 8)
    if len(data) != size:
        raise ProcessLookupError(errno.ESRCH, "the process is gone")
    return np.frombuffer(data, np.uint64)
