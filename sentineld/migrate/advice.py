# SPDX-License-Identifier: Apache-2.0
"""Asks the kernel to page out or read in pages of another process (process_madvise(2)).

The advice never changes the contents of memory. The kernel may ignore it for individual pages, for
example for pages that a child process shares after a fork.
"""

from __future__ import annotations

import ctypes
import errno
import os
from enum import IntEnum

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Table
from sentineld.model.records import PAGE_BYTES

VECTOR_MAX = 1024
"""Maximum number of ranges per call: the kernel's UIO_MAXIOV."""

_NUMBER = 440  # of process_madvise(2), on x86-64 and arm64
_libc = ctypes.CDLL(None, use_errno=True)  # CDLL releases the GIL during the call
_libc.syscall.restype = ctypes.c_long


class Advice(IntEnum):
    """Values of asm-generic/mman-common.h."""

    WILL_NEED = 3  # read swapped pages into the swap cache, without mapping them
    PAGE_OUT = 21  # reclaim the pages now


def require_advice(pidfd: int, pid: int) -> None:
    """Raise SentinelError if the kernel does not let the daemon advise about this process, or
    ProcessLookupError if the process has exited."""
    code = _call(pidfd, np.zeros((0, 2), np.uint64), Advice.PAGE_OUT)
    if code == -errno.ENOSYS:
        raise SentinelError(
            "failed", "the kernel has no process_madvise", "use Linux 5.10 or later"
        )
    _check(code, pid)


def advise(pidfd: int, pid: int, runs: Table, advice: Advice) -> None:
    """Advise the kernel about runs of pages, in their order; PAGE_RUN_DTYPE.

    Ranges that are no longer mapped, or for which the advice is invalid (locked memory), are
    skipped. Raises ProcessLookupError if the process has exited, SentinelError if the kernel
    refuses.
    """
    ranges = np.stack([runs["page"], runs["pages"]], axis=1).astype(np.uint64) * PAGE_BYTES
    ends = np.cumsum(ranges[:, 1])
    first = 0
    while first < len(ranges):
        code = _call(pidfd, ranges[first : first + VECTOR_MAX], advice)
        if code > 0:
            # `code` is the number of bytes before the range that made the kernel stop, or the
            # bytes of the whole vector.
            done = int(ends[first - 1]) if first else 0
            first = int(np.searchsorted(ends, np.uint64(done + code), side="right"))
        elif code in (-errno.EINTR, -errno.EAGAIN):
            continue
        else:
            _check(code, pid)
            first += 1


def _call(pidfd: int, ranges: np.ndarray[tuple[int, ...], np.dtype[np.uint64]], advice: int) -> int:
    """Call process_madvise(2) once; returns its return value, or -errno."""
    vector = np.ascontiguousarray(ranges)
    ctypes.set_errno(0)
    result = int(
        _libc.syscall(
            ctypes.c_long(_NUMBER),
            ctypes.c_long(pidfd),
            ctypes.c_void_p(vector.ctypes.data),
            ctypes.c_ulong(len(vector)),
            ctypes.c_long(advice),
            ctypes.c_ulong(0),
        )
    )
    return -ctypes.get_errno() if result < 0 else result


def _check(code: int, pid: int) -> None:
    """Raise an exception if the process is gone or the kernel refuses all advice about it."""
    if code == -errno.ESRCH:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone")
    if code in (-errno.EPERM, -errno.EACCES):
        raise SentinelError(
            "not-permitted",
            f"the kernel does not let the daemon page out memory of process {pid}",
            "the daemon needs CAP_SYS_NICE and CAP_SYS_PTRACE",
        )
    if code < 0 and code not in (-errno.EINVAL, -errno.ENOMEM, -errno.EBADF, -errno.EIO):
        raise OSError(-code, f"process_madvise: {os.strerror(-code)}")
