# SPDX-License-Identifier: Apache-2.0
"""Buffers for direct I/O, in the same kind of memory as the pager's frames."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

HUGE_PAGE_BYTES = 2 << 20
"""Size of a huge page on x86-64; BLOCK_PAGES in shim/native/pager/homes.h is the same size in pages
of 4 KiB."""


def io_buffers(count: int, size_bytes: int) -> list[memoryview]:
    """Make `count` writable buffers of size_bytes each. size_bytes: a multiple of the page size.

    The buffers are in huge pages if the kernel has any free. A request then has few segments, and
    some disks serve it several times as fast as a request for scattered pages.
    """
    used_bytes = -(-count * size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    memory = mmap.mmap(-1, used_bytes + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    first = -np.frombuffer(memory, np.uint8).ctypes.data % HUGE_PAGE_BYTES
    view = memoryview(memory)
    begins = range(first, first + count * size_bytes, size_bytes)
    return [view[begin : begin + size_bytes] for begin in begins]
