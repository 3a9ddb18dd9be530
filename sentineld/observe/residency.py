# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of a shim's residency segment: where pages are on emulated tiers.

As with the control segment, the process may write anything into it at any time.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np
import numpy.typing as npt

from sentineld.errors import SentinelError
from sentineld.plan.model import Space
from sentineld.shim import protocol

SEGMENT_BYTES_MAX = 1 << 32


class ResidencySegment:
    """A mapped segment. maps: a byte a page, 0: absent, else 1 + node."""

    def __init__(self, fd: int) -> None:
        """Map and check the segment; the caller keeps the descriptor. Raises SentinelError."""
        size = os.fstat(fd).st_size
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise _mismatch("it is not sealed against shrinking")
        if not protocol.RESIDENCY_DTYPE.itemsize <= size <= SEGMENT_BYTES_MAX:
            raise _mismatch(f"it has {size} bytes")
        mapped = mmap.mmap(fd, size)
        self._header = np.frombuffer(mapped, protocol.RESIDENCY_DTYPE, 1)
        fixed = self._header[0].copy()
        if fixed["magic"] != protocol.RESIDENCY_MAGIC or fixed["version"] != protocol.SHIM_VERSION:
            raise _mismatch(f"it says version {int(fixed['version'])}, not {protocol.SHIM_VERSION}")
        self.layout_id = int(fixed["layout_id"])
        self.page_bytes = int(fixed["page_bytes"])
        if self.page_bytes < 4096 or self.page_bytes & (self.page_bytes - 1):
            raise _mismatch(f"its pages have {self.page_bytes} bytes")
        self.maps: dict[Space, npt.NDArray[np.uint8]] = {}
        for space, name in ((Space.ARENA, "arena"), (Space.HEAP, "heap")):
            offset, pages = int(fixed[f"{name}_offset"]), int(fixed[f"{name}_pages"])
            if offset > size or pages > size - offset:
                raise _mismatch(f"its map of the {name} lies outside")
            self.maps[space] = np.frombuffer(mapped, np.uint8, pages, offset)

    @property
    def owed_ns(self) -> int:
        """What slow pages have cost the process so far, by the timing model."""
        return int(self._header["owed_ns"][0])

    @property
    def paid_ns(self) -> int:
        """What the process has waited for it."""
        return int(self._header["paid_ns"][0])


def _mismatch(what: str) -> SentinelError:
    return SentinelError(
        "protocol-mismatch",
        f"the process's residency segment can't be used: {what}",
        "run the training with the shim that came with this daemon",
    )
