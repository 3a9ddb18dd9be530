# SPDX-License-Identifier: Apache-2.0
"""The argument of the ioctl PAGEMAP_SCAN (linux/fs.h, since Linux 6.7)."""

from __future__ import annotations

import ctypes

import numpy as np

REGION_DTYPE = np.dtype([("start", "<u8"), ("end", "<u8"), ("categories", "<u8")])
"""struct page_region."""

IS_WRITTEN, IS_FILE, IS_PRESENT, IS_SWAPPED, IS_ZERO_PAGE = 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
"""Categories of pages. IS_FILE: not anonymous, which includes shared memory."""


class ScanArgument(ctypes.Structure):
    """struct pm_scan_arg."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("size", "flags", "start", "end", "walk_end", "vec", "vec_len", "max_pages"),
            *("category_inverted", "category_mask", "category_anyof_mask", "return_mask"),
        )
    )


IOC_SCAN = 3 << 30 | ctypes.sizeof(ScanArgument) << 16 | ord("f") << 8 | 16


def scan_argument(start: int, end: int) -> ScanArgument:
    """An argument that selects a range of addresses and no categories."""
    return ScanArgument(size=ctypes.sizeof(ScanArgument), start=start, end=end)
