# SPDX-License-Identifier: Apache-2.0
"""Descriptors from a process that allow its writes to be watched; see sentineld.shim.writes."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass

from sentineld.shim.writes import SCAN, SOFT_DIRTY

_PROC_SUPER_MAGIC = 0x9FA0
_STATFS_LONGS = 32  # struct statfs is 120 bytes and begins with f_type
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class WriteFds:
    """Descriptors of one process, owned by this object."""

    way: str = ""  # SCAN, SOFT_DIRTY or "" for no descriptors
    pagemap_fd: int = -1
    control_fd: int = -1
    """SCAN: a userfaultfd, which protects memory while it is open. SOFT_DIRTY: clear_refs."""
    refusal: str = "it has sent no descriptors for it"
    """Why there are no descriptors."""

    @classmethod
    def received(cls, pid: int, way: str, fds: list[int]) -> WriteFds:
        """Check descriptors that a process sent; closes them and returns a refusal if they are
        not the process's own.

        Only the kernel's answers are trusted: a root daemon that reads or writes arbitrary
        descriptors would lend its privileges to the sender.
        """
        found = cls(way, fds[0], fds[1])
        control = {SCAN: "anon_inode:[userfaultfd]", SOFT_DIRTY: f"/proc/{pid}/clear_refs"}
        true = (
            _is_proc_file(found.pagemap_fd, f"/proc/{pid}/pagemap")
            and os.readlink(f"/proc/self/fd/{found.control_fd}") == control.get(way)
            and (way != SOFT_DIRTY or _is_proc_file(found.control_fd, control[way]))
        )
        if true:
            return found
        found.close()
        return cls(refusal="the descriptors that it sent are not its own")

    def close(self) -> None:
        """Close the descriptors, if any."""
        for fd in (self.pagemap_fd, self.control_fd):
            if fd >= 0:
                os.close(fd)
        self.pagemap_fd = self.control_fd = -1

    def without(self, way: str) -> str:
        """Why the process can't be watched this way."""
        return f"it sent those for {self.way}" if self.way and self.way != way else self.refusal


def _is_proc_file(fd: int, path: str) -> bool:
    """Whether the descriptor is this path on a procfs.

    It may be another procfs than the daemon's, because a hardened unit has its own.
    """
    answer = (ctypes.c_long * _STATFS_LONGS)()
    if _libc.fstatfs(fd, ctypes.byref(answer)) != 0:
        return False
    return answer[0] == _PROC_SUPER_MAGIC and os.readlink(f"/proc/self/fd/{fd}") == path
