# SPDX-License-Identifier: Apache-2.0
"""The file that holds a process's pages while they are not in memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sentineld.base.errors import SentinelError

PERMISSION_HINT = (
    "let the daemon write there: under systemd, the folder must belong to root, lie outside of"
    " /home, and be named by ReadWritePaths= (systemctl edit sentineld)"
)
_UNLIMITED_BYTES = 1 << 62
_HINT = "name a folder on a local disk with enough room: sentineld --tiers paged:FOLDER"


def open_paging_file(folder: Path, size_bytes: int) -> int:
    """Create an unnamed file (O_TMPFILE), reserve its space, and return its descriptor.

    The kernel deletes the file when no descriptor or mapping refers to it any more, so nothing
    remains after a crash. The descriptor is opened with O_DIRECT, so all reads and writes through
    it are direct. Raises SentinelError if the file cannot be created or its space cannot be
    reserved.
    """
    flags = os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        file = os.open(folder, flags, 0o600)
    except OSError as error:
        denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        hint = PERMISSION_HINT if denied else _HINT
        raise SentinelError("bad-config", f"{folder}: {_reason(error)}", hint) from None
    try:
        # If the disk has too little room, fallocate() can allocate all free blocks before it fails.
        # Until they are freed, no program can write to the disk.
        if not 0 < size_bytes <= _room_bytes(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(file, 0, size_bytes)
    except OSError as error:
        os.close(file)
        raise SentinelError("failed", f"{folder}: {_reason(error)}", _HINT) from None
    return file


def _room_bytes(file: int) -> int:
    """Bytes that this process may allocate on a file's file system; unlimited if the file system
    reports no size. Raises OSError."""
    disk = os.fstatvfs(file)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else _UNLIMITED_BYTES


def _reason(error: OSError) -> str:
    if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
        return "its file system cannot hold paged memory (it lacks O_TMPFILE or O_DIRECT)"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "its file system has too little room"
    return os.strerror(error.errno or 0)
