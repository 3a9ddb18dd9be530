# SPDX-License-Identifier: Apache-2.0
"""The PAGEMAP_SCAN backend: finds written pages of given ranges by asynchronous write protection.

The process registers its memory with a userfaultfd, and sends this userfaultfd and a
descriptor of /proc/self/pagemap (sentineld.shim.writes). This backend write-protects a range with
one ioctl; a second ioctl returns the pages that have been written since. Closing the
userfaultfd, or the daemon's exit, removes the protection.
"""

from __future__ import annotations

import fcntl

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_WRITE, PAGE_BYTES
from sentineld.observe.backend import (
    AREA_DTYPE,
    NO_NODE,
    Areas,
    Backend,
    Ranges,
    Target,
)
from sentineld.observe.pagemap_ioctl import (
    IOC_SCAN,
    IS_PRESENT,
    IS_SWAPPED,
    IS_WRITTEN,
    IS_ZERO_PAGE,
    REGION_DTYPE,
    scan_argument,
)
from sentineld.observe.writeprobe import reports_written_page
from sentineld.observe.writewatch import WRITE_CAPABILITIES, WriteWatch, read_pagemap
from sentineld.shim.writes import SCAN as WAY
from sentineld.shim.writes import protect_writes

_REGIONS = 4096
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_HINT = (
    "use Linux 6.7 or later; let a container's seccomp filter pass userfaultfd; on paged tiers, "
    "soft-dirty bits are used instead"
)


class ScanWatch(WriteWatch):
    """Write-protects ranges when a window (backend.py) begins; scans them when the window ends."""

    def __init__(self, target: Target) -> None:
        """Take over the target's descriptors. Raises SentinelError if the target sent none, or
        descriptors of another kind."""
        super().__init__(target, WAY, "PAGEMAP_SCAN", _HINT)

    def begin(self, ranges: Ranges) -> None:
        """Write-protect the pages of the ranges, including absent ones that have a page table."""
        super().begin(ranges)
        for start, size in self._ranges:
            argument = scan_argument(start, start + size)
            argument.flags = _WP_MATCHING | _CHECK_WPASYNC
            argument.category_mask = IS_WRITTEN
            argument.return_mask = IS_WRITTEN
            fcntl.ioctl(self._writes.pagemap_fd, IOC_SCAN, argument)

    def end(self) -> Areas:
        """Return the pages written since begin(); the other pages stay protected."""
        found = [np.zeros(0, AREA_DTYPE)]
        regions = np.zeros(_REGIONS, REGION_DTYPE)
        for start, size in self._ranges:
            # After the process has exited, a scan finds no pages and raises no error, but
            # read_pagemap() raises ProcessLookupError.
            read_pagemap(self._writes.pagemap_fd, start, PAGE_BYTES)
            at = start
            while at < start + size:
                argument = scan_argument(at, start + size)
                argument.vec, argument.vec_len = regions.ctypes.data, len(regions)
                # Exclude the zero page: it counts as written even if it was only read.
                argument.category_inverted = IS_ZERO_PAGE
                argument.category_mask = IS_WRITTEN | IS_ZERO_PAGE
                argument.category_anyof_mask = IS_PRESENT | IS_SWAPPED
                argument.return_mask = IS_WRITTEN
                count = fcntl.ioctl(self._writes.pagemap_fd, IOC_SCAN, argument)
                at = int(argument.walk_end)
                areas = np.zeros(count, AREA_DTYPE)
                begins, ends = regions["start"][:count], regions["end"][:count]
                areas["start"], areas["bytes"] = begins, ends - begins
                areas["flags"], areas["node"], areas["heat"] = ACCESS_WRITE, NO_NODE, 1
                found.append(areas)
        return np.concatenate(found)


def _probe() -> SentinelError | None:
    try:
        works = reports_written_page(WAY, ScanWatch, protect_writes)
    except OSError as error:
        return SentinelError(
            "failed",
            f"the kernel has no PAGEMAP_SCAN with asynchronous write protection: {error}",
            _HINT,
        )
    if not works:
        return SentinelError("failed", "PAGEMAP_SCAN gives wrong results", "use another kernel")
    return None


PAGEMAP_SCAN = Backend(
    name=WAY,
    capabilities=WRITE_CAPABILITIES,
    probe=_probe,
    open=ScanWatch,
)
