# SPDX-License-Identifier: Apache-2.0
"""Soft-dirty bits as a backend: which pages were written, on any kernel that has them.

Clearing the bits write-protects the whole process, so every page's next write
costs it a minor fault. Both files are opened by the process itself and handed
out: they belong to its user, and the daemon may not open them.
"""

from __future__ import annotations

import errno
import os

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.records import ACCESS_WRITE
from sentineld.observe.backend import (
    AREA_DTYPE,
    PAGE_BYTES,
    Areas,
    Backend,
    Capabilities,
    Ranges,
    Resolution,
    Target,
    merge_pages,
)
from sentineld.observe.writefds import WriteFds
from sentineld.observe.writeprobe import tells_written
from sentineld.shim.writes import SOFT_DIRTY as WAY

_SOFT_DIRTY_BIT = np.uint64(1 << 55)
_IN_MEMORY_BITS = np.uint64(3 << 62)  # present or swapped
_CHUNK_PAGES = 1 << 16
_CLEAR_SOFT_DIRTY = b"4"


def read_pagemap(pagemap_fd: int, start: int, length_bytes: int) -> npt.NDArray[np.uint64]:
    """The 64-bit entries of a range's pages. Raises ProcessLookupError once the process is gone."""
    size = length_bytes // PAGE_BYTES * 8
    data = os.pread(pagemap_fd, size, start // PAGE_BYTES * 8)
    if len(data) != size:
        raise ProcessLookupError(errno.ESRCH, "the process is gone")
    return np.frombuffer(data, np.uint64)


def written_pages(entries: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Indices of the pages that are there and soft-dirty.

    A mapping younger than the last clearing makes all of its entries soft-dirty, those
    without a page too; these are left out.
    """
    written = (entries & _SOFT_DIRTY_BIT != 0) & (entries & _IN_MEMORY_BITS != 0)
    return np.flatnonzero(written)


class SoftDirtyWatch:
    """Clears all soft-dirty bits of a process, and reads them at the window's end."""

    def __init__(self, target: Target) -> None:
        """Take the target's descriptors over. Raises SentinelError if it handed out none."""
        writes = target.writes or WriteFds()
        if writes.way != WAY:
            raise SentinelError(
                "failed",
                f"process {target.pid} can't be watched by soft-dirty bits: {writes.without(WAY)}",
                "let it open its own /proc/self/clear_refs and pagemap",
            )
        self._writes = writes
        self._ranges: list[tuple[int, int]] = []

    def begin(self, ranges: Ranges) -> None:
        """Clear the bits."""
        self._ranges = sorted(ranges)
        os.write(self._writes.control_fd, _CLEAR_SOFT_DIRTY)

    def poll(self) -> None:
        """The bits stay; nothing is missed in between."""

    def end(self) -> Areas:
        """The pages written since begin(). The bits stay until the next window."""
        found = [np.zeros(0, AREA_DTYPE)]
        for start, size in self._ranges:
            for offset in range(0, size, _CHUNK_PAGES * PAGE_BYTES):
                part = min(_CHUNK_PAGES * PAGE_BYTES, size - offset)
                written = written_pages(read_pagemap(self._writes.pagemap_fd, start + offset, part))
                pages = (written + (start + offset) // PAGE_BYTES).astype(np.uint64)
                found.append(merge_pages(pages, np.full(len(pages), ACCESS_WRITE, np.uint8)))
        return np.concatenate(found)

    def close(self) -> None:
        """Close the descriptors."""
        self._writes.close()


def _probe() -> SentinelError | None:
    def open_control(_start: int, _size: int) -> int:
        return os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)

    try:
        told = tells_written(WAY, SoftDirtyWatch, open_control)
    except OSError as error:
        return SentinelError(
            "failed", f"/proc/self/clear_refs: {error.strerror}", "allow it in the container"
        )
    if not told:
        return SentinelError(
            "failed",
            "the kernel keeps no soft-dirty bits",
            "use a kernel with CONFIG_MEM_SOFT_DIRTY=y",
        )
    return None


SOFT_DIRTY = Backend(
    name=WAY,
    capabilities=Capabilities(
        reads=False,
        writes=True,
        tells_writes=True,
        births=False,
        nodes=False,
        frequency=False,
        exact=True,
        epochs=False,
        resolution=Resolution.PAGE,
        needs="CONFIG_MEM_SOFT_DIRTY; the process's own consent",
    ),
    probe=_probe,
    open=SoftDirtyWatch,
)
