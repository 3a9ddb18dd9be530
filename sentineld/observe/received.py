# SPDX-License-Identifier: Apache-2.0
"""Finds the kind of a received descriptor with system calls that no sender can block.

A sender can block other calls. For example, fstat(), read() and close() of a file on FUSE wait for
the process that serves the file system, which can be the sender itself. Therefore:

- Shared memory (memfd, tmpfs, hugetlbfs) is recognised by F_GET_SEALS. This call fails for all
  other files, and does not call into their file systems. Further calls on shared memory cannot
  block.
- An anonymous inode is recognised by the link /proc/self/fd/N, which contains its kind, such as
  anon_inode:[eventfd]. No file can imitate the link, because links of files begin with "/".
- All other descriptors are passed to a thread that may block (base/closing.py).
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
    """The seals of shared memory; None for any other kind of descriptor."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:
        return None


def link(fd: int) -> str:
    """The text of the link /proc/self/fd/N.

    The text proves the kind of an anonymous inode. It does not prove that a file is at this path,
    because the sender's mount namespace can differ."""
    return os.readlink(f"/proc/self/fd/{fd}")


def file_system(fd: int) -> int:
    """The magic number of the descriptor's file system; 0: unknown. The call can block, except for
    shared memory."""
    answer = (ctypes.c_long * _STATFS_LONGS)()
    return int(answer[0]) if _libc.fstatfs(fd, ctypes.byref(answer)) == 0 else 0


def close_received(uid: int, fd: int) -> None:
    """Close a descriptor that a process of this user sent; does not block."""
    if seals(fd) is not None or link(fd) == EVENTFD:
        os.close(fd)
    else:
        close_untrusted(uid, fd)
