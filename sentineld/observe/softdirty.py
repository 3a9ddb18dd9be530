# SPDX-License-Identifier: Apache-2.0
"""The soft-dirty backend: finds written pages, on any kernel with soft-dirty bits.

Clearing the bits write-protects the whole process, so the next write to each page costs a minor
fault. The process opens its own /proc files clear_refs and pagemap and sends the descriptors,
because without CAP_DAC_OVERRIDE the daemon cannot open these files of another user's process.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_WRITE, PAGE_BYTES
from sentineld.observe.backend import (
    AREA_DTYPE,
    Areas,
    Backend,
    Ranges,
    Target,
    merge_pages,
)
from sentineld.observe.writeprobe import reports_written_page
from sentineld.observe.writewatch import WRITE_CAPABILITIES, WriteWatch, read_pagemap
from sentineld.shim.writes import SOFT_DIRTY as WAY

_SOFT_DIRTY_BIT = np.uint64(1 << 55)
_IN_MEMORY_BITS = np.uint64(3 << 62)  # present or swapped
_CHUNK_PAGES = 1 << 16
_CLEAR_SOFT_DIRTY = b"4"


def written_pages(entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Indices of the pagemap entries that have a page and are soft-dirty.

    Entries without a page are left out: in a mapping created after the bits were
    cleared, all entries are soft-dirty.
    """
    written = (entries & _SOFT_DIRTY_BIT != 0) & (entries & _IN_MEMORY_BITS != 0)
    return np.flatnonzero(written)


class SoftDirtyWatch(WriteWatch):
    """Clears all soft-dirty bits of a process when a window (backend.py) begins, and reads them
    when the window ends."""

    def __init__(self, target: Target) -> None:
        """Take over the target's descriptors. Raises SentinelError if the target sent none, or
        descriptors of another kind."""
        hint = "let the process open its /proc/self/clear_refs and pagemap"
        super().__init__(target, WAY, "soft-dirty bits", hint)

    def begin(self, ranges: Ranges) -> None:
        """Clear the soft-dirty bits of the whole process."""
        super().begin(ranges)
        os.write(self._writes.control_fd, _CLEAR_SOFT_DIRTY)

    def end(self) -> Areas:
        """Return the pages written since begin(). The bits stay set until the next window."""
        found = [np.zeros(0, AREA_DTYPE)]
        for start, size in self._ranges:
            for offset in range(0, size, _CHUNK_PAGES * PAGE_BYTES):
                part = min(_CHUNK_PAGES * PAGE_BYTES, size - offset)
                written = written_pages(read_pagemap(self._writes.pagemap_fd, start + offset, part))
                pages = (written + (start + offset) // PAGE_BYTES).astype(np.uint64)
                found.append(merge_pages(pages, np.full(len(pages), ACCESS_WRITE, np.uint8)))
        return np.concatenate(found)


def _probe() -> SentinelError | None:
    def open_control(_start: int, _size: int) -> int:
        return os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)

    try:
        works = reports_written_page(WAY, SoftDirtyWatch, open_control)
    except OSError as error:
        return SentinelError(
            "failed", f"/proc/self/clear_refs: {error.strerror}", "allow it in the container"
        )
    if not works:
        return SentinelError(
            "failed",
            "the kernel has no soft-dirty bits",
            "use a kernel with CONFIG_MEM_SOFT_DIRTY=y",
        )
    return None


SOFT_DIRTY = Backend(
    name=WAY,
    capabilities=WRITE_CAPABILITIES,
    probe=_probe,
    open=SoftDirtyWatch,
)
