# SPDX-License-Identifier: Apache-2.0
"""Moves and locates pages of a process (move_pages(2), numa_maps), and places memory of this
process on a node (mbind(2)).

If the return value of move_pages(2) is positive, some statuses may be unwritten. If the target node
becomes full, the call fails with ENOMEM although it has moved some pages. In both cases the
functions of this module query the pages again, so that the caller gets the true status of each
page.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.proc_text import read_proc_text
from sentineld.model.records import PAGE_BYTES

BATCH_PAGES = 2048
"""Pages per call. Calls with 512 to 4096 pages reach the full bandwidth. The overhead of a call
equals the time to move about 200 pages."""

NOT_WRITTEN = -(1 << 30)
"""Status of a page for which the kernel wrote no status. move_pages() queries such pages after the
move, and returns this value only if the query writes no status either."""

_NUMBERS = {
    "x86_64": {"move_pages": 279, "mbind": 237},
    "aarch64": {"move_pages": 239, "mbind": 235},
}
_MPOL_MF_MOVE = 1 << 1
_MPOL_PREFERRED = 1
_libc = ctypes.CDLL(None, use_errno=True)  # CDLL releases the GIL during the call
_libc.syscall.restype = ctypes.c_long

Addresses = npt.NDArray[np.uint64]
Status = npt.NDArray[np.int32]


@dataclass(frozen=True)
class MoveResult:
    """The result of a move."""

    status: Status
    """Each page's node after the move (>= 0), NOT_WRITTEN, or -errno: ENOENT absent, EFAULT not
    mapped, EACCES shared with another process, EBUSY no room in the pager's queue (paged tiers)."""
    error: int
    """errno of the failed call (ENOMEM: the target is full), EINTR if a move on emulated tiers has
    ended before all of its pages have arrived, or 0; `status` is always valid."""


def _number(name: str) -> int:
    try:
        return _NUMBERS[platform.machine()][name]
    except KeyError:
        raise SentinelError(
            "failed",
            f"the number of {name} is unknown on {platform.machine()}",
            "use x86-64 or arm64",
        ) from None


def _call(pid: int, pages: Addresses, nodes: npt.NDArray[np.int32] | None, status: Status) -> int:
    """Call move_pages(2) once; returns its return value, or -errno."""
    ctypes.set_errno(0)
    result = int(
        _libc.syscall(
            ctypes.c_long(_number("move_pages")),
            ctypes.c_long(pid),
            ctypes.c_ulong(len(pages)),
            ctypes.c_void_p(pages.ctypes.data),
            ctypes.c_void_p(nodes.ctypes.data if nodes is not None else None),
            ctypes.c_void_p(status.ctypes.data),
            ctypes.c_long(_MPOL_MF_MOVE if nodes is not None else 0),
        )
    )
    return -ctypes.get_errno() if result < 0 else result


def _check(pid: int, code: int) -> None:
    """Raise an exception if the process is gone, the kernel refuses the call or a node is not
    online. Do nothing for other errors."""
    if code == -errno.ESRCH:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone")
    if code in (-errno.EPERM, -errno.EACCES):
        raise SentinelError(
            "not-permitted",
            f"the kernel refuses to move pages of process {pid}",
            "the daemon needs CAP_SYS_PTRACE, and its cpuset and the process's cpuset must contain"
            " the target node",
        )
    if code == -errno.ENODEV:
        raise SentinelError(
            "failed", "a target node is not online", "name online nodes in the config's [tiers]"
        )


def query_pages(pid: int, pages: Addresses, batch_pages: int = 16 * BATCH_PAGES) -> Status:
    """Node of each page, or -errno (ENOENT, EFAULT), or NOT_WRITTEN.

    Raises ProcessLookupError if pid is gone, SentinelError if the kernel refuses, OSError if the
    query fails for another reason.
    """
    pages = np.ascontiguousarray(pages, dtype=np.uint64)
    status = np.full(len(pages), NOT_WRITTEN, dtype=np.int32)
    for first in range(0, len(pages), batch_pages):
        part = slice(first, first + batch_pages)
        code = _call(pid, pages[part], None, status[part])
        if code < 0:
            _check(pid, code)
            raise OSError(-code, f"move_pages query: {os.strerror(-code)}")
    return status


def move_pages(
    pid: int, pages: Addresses, nodes: npt.NDArray[np.int32] | int, batch_pages: int = BATCH_PAGES
) -> MoveResult:
    """Move pages to nodes, batch by batch.

    pages: distinct addresses; of each huge page only the first address. A move of this address
        moves the whole huge page; moves of further addresses in the huge page then fail.
    nodes: one node for all pages, or one for each page.

    A batch that fails (ENOMEM: the node is full) ends the move; the remaining pages are only
    queried. Raises ProcessLookupError if pid is gone, SentinelError if the kernel refuses.
    """
    pages = np.ascontiguousarray(pages, dtype=np.uint64)
    targets = np.ascontiguousarray(np.broadcast_to(np.asarray(nodes, np.int32), pages.shape))
    status = np.full(len(pages), NOT_WRITTEN, dtype=np.int32)
    error = 0
    for first in range(0, len(pages), batch_pages):
        part = slice(first, first + batch_pages)
        code = _call(pid, pages[part], targets[part], status[part])
        if code < 0:
            _check(pid, code)
            # The statuses of a failed call may be stale: some of its pages may have moved.
            status[part] = NOT_WRITTEN
            error = -code
            break
    # After a positive return value some statuses are unwritten, and a page reported as EBUSY may
    # have moved with another address of the same huge page. A query returns the true status in both
    # cases.
    unsure = np.flatnonzero((status == NOT_WRITTEN) | (status == -errno.EBUSY))
    if len(unsure):
        status[unsure] = query_pages(pid, pages[unsure])
    return MoveResult(status, error)


def prefer_node(address: int, length_bytes: int, node: int) -> None:
    """Prefer a node for a range of this process: mbind(MPOL_PREFERRED). Raises OSError."""
    mask = (ctypes.c_ulong * 16)()
    mask[node // 64] = 1 << (node % 64)
    ctypes.set_errno(0)
    result = _libc.syscall(
        ctypes.c_long(_number("mbind")),
        ctypes.c_ulong(address),
        ctypes.c_ulong(length_bytes),
        ctypes.c_long(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(16 * 64),
        ctypes.c_long(0),
    )
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mbind: {os.strerror(code)}")


def page_addresses(start: int, length_bytes: int, page_bytes: int = PAGE_BYTES) -> Addresses:
    """Addresses of the pages of [start, start + length_bytes)."""
    return np.arange(start, start + length_bytes, page_bytes, dtype=np.uint64)


def page_ranges(pages: Addresses | npt.NDArray[np.int64], page_bytes: int) -> list[tuple[int, int]]:
    """Pages as (start, bytes) ranges, adjacent pages merged.

    pages: (P,); addresses or page numbers. For page numbers, set page_bytes to 1; the ranges are
        then (first page, number of pages).
    """
    if not len(pages):
        return []
    ordered = np.sort(pages)
    breaks = np.flatnonzero(np.diff(ordered) != page_bytes) + 1
    return [
        (int(group[0]), int(group[-1]) - int(group[0]) + page_bytes)
        for group in np.split(ordered, breaks)
    ]


def numa_maps(
    pid: int, ranges: Iterable[tuple[int, int]], proc_root: Path = Path("/proc")
) -> dict[int, int]:
    """Number of resident 4 KiB pages on each node, in mappings that begin inside the ranges.

    ranges: (start, bytes) of each.

    The kernel counts whole mappings, so the result is exact only for ranges that consist of whole
    mappings (heap, arena). Reading numa_maps costs a fifth as much as querying each page. Raises
    ProcessLookupError if pid is gone.
    """
    try:
        text = read_proc_text(proc_root / str(pid) / "numa_maps")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from None
    spans = [(start, start + length) for start, length in ranges]
    pages: dict[int, int] = {}
    for line in filter(None, text.split("\n")):
        words = line.split(" ")
        address = int(words[0], 16)
        if not any(low <= address < high for low, high in spans):
            continue
        fields = dict(word.split("=", 1) for word in words[2:] if "=" in word)
        scale = int(fields.get("kernelpagesize_kB", "4")) // 4
        for key, value in fields.items():
            if key[0] == "N" and key[1:].isdigit():
                pages[int(key[1:])] = pages.get(int(key[1:]), 0) + int(value) * scale
    return pages
