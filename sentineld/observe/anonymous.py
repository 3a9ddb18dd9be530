# SPDX-License-Identifier: Apache-2.0
"""The anonymous pages of another process: which are resident, which are swapped out, and in which
page frames they lie.

An open pagemap file belongs to the address space that the process had when the file was opened.
After an exec() or the exit of the process, reads return nothing.
"""

from __future__ import annotations

import fcntl
import os
import platform
import threading

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers, Table
from sentineld.model.records import PAGE_BYTES, PAGE_RUN_DTYPE
from sentineld.observe.pagemap_ioctl import (
    IOC_SCAN,
    IS_FILE,
    IS_PRESENT,
    IS_SWAPPED,
    IS_ZERO_PAGE,
    REGION_DTYPE,
    scan_argument,
)
from sentineld.observe.writewatch import read_pagemap

_REGIONS = 8192
_ADDRESS_BITS = {"x86_64": 47, "aarch64": 48}
_PRESENT_BIT = np.uint64(1 << 63)
_FRAME_MASK = np.uint64((1 << 55) - 1)


class AnonymousPages:
    """The pagemap of one process. frames() may be called from any thread; all other methods must be
    called from one thread."""

    def __init__(self, pid: int) -> None:
        """Open the pagemap, and lock it so that only one session manages the process.

        Raises SentinelError "not-permitted", "busy" or "failed", and ProcessLookupError if the
        process has exited.
        """
        bits = _ADDRESS_BITS.get(platform.machine())
        if bits is None:
            raise SentinelError(
                "failed", f"address spaces of {platform.machine()} are unknown", "use x86-64"
            )
        self._end = (1 << bits) - PAGE_BYTES
        self._closing = threading.Lock()
        try:
            self._fd = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            raise SentinelError(
                "not-permitted",
                f"the daemon may not read the page tables of process {pid}",
                "give the daemon CAP_SYS_PTRACE and, for other users' processes,"
                " CAP_DAC_READ_SEARCH",
            ) from None
        except FileNotFoundError:
            raise ProcessLookupError(f"process {pid} is gone") from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.runs()
        except BlockingIOError:
            self.close()
            raise SentinelError(
                "busy",
                f"process {pid} is managed by another session or another daemon",
                "end that session, or stop that daemon",
            ) from None
        except OSError as error:
            self.close()
            if isinstance(error, ProcessLookupError):
                raise
            raise SentinelError(
                "failed",
                f"the kernel has no PAGEMAP_SCAN: {error.strerror}",
                "use Linux 6.7 or later",
            ) from None

    def require_address_space(self) -> None:
        """Raise ProcessLookupError if the address space is gone, because the process has exited or
        has executed another program."""
        read_pagemap(self._fd, 0, PAGE_BYTES)

    def runs(self, first: int = 0, end: int | None = None) -> Table:
        """Runs of the anonymous pages in a range, ascending, without zero pages; PAGE_RUN_DTYPE.

        first, end: page numbers; None: the end of the address space. Private huge pages (hugetlb)
        are included. Raises OSError, or ProcessLookupError if the address space is gone.
        """
        self.require_address_space()
        regions = np.zeros(_REGIONS, REGION_DTYPE)
        found = [np.zeros(0, PAGE_RUN_DTYPE)]
        at = first * PAGE_BYTES
        end_address = self._end if end is None else min(end * PAGE_BYTES, self._end)
        while at < end_address:
            argument = scan_argument(at, end_address)
            argument.vec, argument.vec_len = regions.ctypes.data, len(regions)
            argument.category_inverted = IS_FILE | IS_ZERO_PAGE
            argument.category_mask = IS_FILE | IS_ZERO_PAGE
            argument.category_anyof_mask = IS_PRESENT | IS_SWAPPED
            argument.return_mask = IS_PRESENT | IS_SWAPPED
            count = fcntl.ioctl(self._fd, IOC_SCAN, argument)
            at = int(argument.walk_end)
            runs = np.zeros(count, PAGE_RUN_DTYPE)
            runs["page"] = regions["start"][:count] // PAGE_BYTES
            runs["pages"] = regions["end"][:count] // PAGE_BYTES - runs["page"].astype(np.uint64)
            runs["resident"] = regions["categories"][:count] & IS_PRESENT != 0
            found.append(runs)
        return np.concatenate(found)

    def frames(self, pages: Integers) -> Integers:
        """The page frame number of each page; 0 if the page is not resident, or if the daemon lacks
        CAP_SYS_ADMIN, without which the kernel hides frame numbers. Raises ProcessLookupError,
        also after close()."""
        entries = np.zeros(len(pages), np.uint64)
        with self._closing:
            if self._fd < 0:
                raise ProcessLookupError("the pagemap is closed")
            for index, page in enumerate(pages.tolist()):
                entries[index] = read_pagemap(self._fd, page * PAGE_BYTES, PAGE_BYTES)[0]
        frames = np.where(entries & _PRESENT_BIT != 0, entries & _FRAME_MASK, np.uint64(0))
        return frames.astype(np.int64)

    def close(self) -> None:
        """Close the pagemap, which also unlocks it."""
        with self._closing:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


def without(runs: Table, excluded: Integers) -> Table:
    """The runs without the pages of some ranges.

    runs: PAGE_RUN_DTYPE, ascending. excluded: (first page, end page) of each range, (R, 2),
    ascending and disjoint.
    """
    if not len(runs):
        return runs
    first = runs["page"]
    end = first + runs["pages"]
    low = np.searchsorted(excluded[:, 1], first[0], side="right")
    high = np.searchsorted(excluded[:, 0], end[-1], side="left")
    # Cut the runs to the gaps between the ranges. A loop over the ranges would take a minute if
    # there are tens of thousands of them, as in a process that has locked many separate pages.
    gap_start = np.append(first[:1], excluded[low:high, 1])
    gap_end = np.append(excluded[low:high, 0], end[-1:])
    first_gap = np.searchsorted(gap_end, first, side="right")
    parts = np.searchsorted(gap_start, end, side="left") - first_gap
    index = np.repeat(np.arange(len(runs)), parts)
    gap = np.arange(len(index)) + np.repeat(first_gap - np.cumsum(parts) + parts, parts)
    cut = runs[index]
    cut["page"] = np.maximum(first[index], gap_start[gap])
    cut["pages"] = np.minimum(end[index], gap_end[gap]) - cut["page"]
    return cut[cut["pages"] > 0]
