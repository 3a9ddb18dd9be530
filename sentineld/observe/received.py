# SPDX-License-Identifier: Apache-2.0
"""Finds out what a received descriptor is, by calls that no sender can make block.

fstat(), read() or close() of a file on FUSE, for example, wait for a process of the sender. So:

- F_GET_SEALS is answered for shared memory only (memfd, tmpfs, hugetlbfs), and without a call into
  the file system. All further calls on shared memory are safe.
- The link /proc/self/fd/N of an anonymous inode is its kind, such as anon_inode:[eventfd]. No file
  can forge it: the links of files begin with "/".
- Everything else is left to a thread that may block (base/closing.py).
"""

from __future__ import annotations

import ctypes
import fcntl
import os

from sentineld.base.closing import close_untrusted

HUGETLBFS_MAGIC = 0x958458F6
PROC_SUPER_MAGIC = 0x9FA0
EVENTFD = "anon_inode:[eventfd]"
USERFAULTFD = "anon_inode:[userfaultfd]"

_STATFS_LONGS = 32  # struct statfs is 120 bytes and begins with f_type
_libc = ctypes.CDLL(None, use_errno=True)


def seals(fd: int) -> int | None:
    """The seals of shared memory; None: it is something else."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return None


def link(fd: int) -> str:
    """The text of /proc/self/fd/N. It proves the kind of an anonymous inode, but not that a file
    is at this path: the sender's mount namespace may differ."""
    return os.readlink(f"/proc/self/fd/{fd}")


def file_system(fd: int) -> int:
    """The magic number of the descriptor's file system; 0: unknown. May block, unless it is shared
    memory."""
    answer = (ctypes.c_long * _STATFS_LONGS)()
    return int(answer[0]) if _libc.fstatfs(fd, ctypes.byref(answer)) == 0 else 0


def close_received(uid: int, fd: int) -> None:
    """Close a descriptor that a process of this user sent; does not block."""
    if seals(fd) is not None or link(fd) == EVENTFD:
        os.close(fd)
    else:
        close_untrusted(uid, fd)
