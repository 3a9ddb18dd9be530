# SPDX-License-Identifier: Apache-2.0
"""The PAGEMAP_SCAN backend: finds written pages of given ranges by asynchronous write protection.

The process registers its memory with a userfaultfd, and sends this userfaultfd and a
descriptor of /proc/self/pagemap (sentineld.shim.writes). This backend write-protects a range with
one ioctl; a second ioctl returns the pages that have been written since. Closing the
userfaultfd, or the daemon's exit, removes the protection.
"""

from __future__ import annotations

import ctypes
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
from sentineld.observe.writeprobe import reports_written_page
from sentineld.observe.writewatch import WriteWatch, read_pagemap, write_capabilities
from sentineld.shim.writes import SCAN as WAY
from sentineld.shim.writes import protect_writes

REGION_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")])
"""struct page_region of linux/fs.h."""

_REGIONS = 4096
_WP_MATCHING, _CHECK_WPASYNC = 1, 2
_IS_WRITTEN, _IS_PRESENT, _IS_SWAPPED, _IS_ZERO_PAGE = 1 << 1, 1 << 3, 1 << 4, 1 << 5


class _ScanArgument(ctypes.Structure):
    """struct pm_scan_arg of linux/fs.h."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    )


_HINT = "use Linux 6.7 or later; let a container's seccomp filter pass userfaultfd"

_IOC_SCAN = 3 << 30 | ctypes.sizeof(_ScanArgument) << 16 | ord("f") << 8 | 16


class ScanWatch(WriteWatch):
    """Write-protects ranges when the window begins and scans them when it ends."""

    def __init__(self, target: Target) -> None:
        """Take over the target's descriptors. Raises SentinelError if the target sent none, or
        descriptors of another kind."""
        super().__init__(target, WAY, "PAGEMAP_SCAN", _HINT)

    def begin(self, ranges: Ranges) -> None:
        """Write-protect the pages of the ranges, including absent ones that have a page table."""
        super().begin(ranges)
        for start, size in self._ranges:
            argument = self._argument(start, start + size)
            argument.flags = _WP_MATCHING | _CHECK_WPASYNC
            argument.category_mask = _IS_WRITTEN
            argument.return_mask = _IS_WRITTEN
            fcntl.ioctl(self._writes.pagemap_fd, _IOC_SCAN, argument)

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
                argument = self._argument(at, start + size)
                argument.vec, argument.vec_len = regions.ctypes.data, len(regions)
                # Exclude the zero page: it counts as written even if it was only read.
                argument.category_inverted = _IS_ZERO_PAGE
                argument.category_mask = _IS_WRITTEN | _IS_ZERO_PAGE
                argument.category_anyof_mask = _IS_PRESENT | _IS_SWAPPED
                argument.return_mask = _IS_WRITTEN
                count = fcntl.ioctl(self._writes.pagemap_fd, _IOC_SCAN, argument)
                at = int(argument.walk_end)
                areas = np.zeros(count, AREA_DTYPE)
                areas["start"] = regions["start"][:count]
                areas["bytes"] = regions["end"][:count] - regions["start"][:count]
                areas["flags"], areas["node"], areas["heat"] = ACCESS_WRITE, NO_NODE, 1
                found.append(areas)
        return np.concatenate(found)

    def _argument(self, start: int, end: int) -> _ScanArgument:
        return _ScanArgument(size=ctypes.sizeof(_ScanArgument), start=start, end=end)


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
    capabilities=write_capabilities("userfaultfd and PAGEMAP_SCAN; the process's own consent"),
    probe=_probe,
    open=ScanWatch,
)
