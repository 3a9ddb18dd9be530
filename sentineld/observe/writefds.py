# SPDX-License-Identifier: Apache-2.0
"""Descriptors with which the writes of a process can be watched; see sentineld.shim.writes."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from sentineld.base.closing import close_untrusted, run_untrusted
from sentineld.observe.peer import Peer
from sentineld.observe.received import PROC_SUPER_MAGIC, USERFAULTFD, file_system, link
from sentineld.shim.writes import SCAN, SOFT_DIRTY

CHECK_WAIT_S = 1.0
"""Time limit for the check of received descriptors. The check takes microseconds if the
descriptors are of the expected kind; otherwise it can block."""


@dataclass
class WriteFds:
    """Descriptors of one process, owned by this object."""

    way: str = ""  # SCAN, SOFT_DIRTY or "" for no descriptors
    pagemap_fd: int = -1
    control_fd: int = -1
    """SCAN: a userfaultfd; memory is write-protected only while it is open. SOFT_DIRTY:
    /proc/PID/clear_refs."""
    uid: int | None = None
    """The user whose process sent the descriptors; None: the daemon opened them itself."""
    refusal: str = "it has sent no descriptors"
    """Why there are no descriptors."""

    def close(self) -> None:
        """Close the descriptors, if any; does not block."""
        for fd in (self.pagemap_fd, self.control_fd):
            if fd >= 0 and self.uid is None:
                os.close(fd)
            elif fd >= 0 and self.uid is not None:
                # close() of a userfaultfd waits for the lock of the process's memory map. The
                # process can hold this lock for a long time.
                close_untrusted(self.uid, fd)
        self.pagemap_fd = self.control_fd = -1

    def without(self, way: str) -> str:
        """The reason why the process can't be watched by `way` (SCAN or SOFT_DIRTY)."""
        return (
            f"it sent descriptors for {self.way}" if self.way and self.way != way else self.refusal
        )


class ReceivedWriteFds:
    """Descriptors that a process sent, and the check that they refer to the process's own files.

    Only the kernel's answers are trusted: a root daemon that reads or writes arbitrary descriptors
    would lend its privileges to the sender.
    """

    def __init__(self, peer: Peer, way: str, fds: list[int]) -> None:
        """Begin to check descriptors, which this object owns from now on; does not block."""
        self._found = WriteFds(way, fds[0], fds[1], peer.uid)
        self._own = False
        self._checked = threading.Event()
        pagemap, clear_refs = f"/proc/{peer.pid}/pagemap", f"/proc/{peer.pid}/clear_refs"
        control = {SCAN: USERFAULTFD, SOFT_DIRTY: clear_refs}
        if link(fds[0]) != pagemap or link(fds[1]) != control.get(way):
            self._checked.set()
            return
        # The process can be in its own mount namespace, in which another file, for example one on
        # FUSE, has the same path. Only the type of the file system shows whether the file is in a
        # procfs, and the call that returns the type can block. (A comparison with the file in the
        # daemon's own /proc would fail if the daemon runs in a hardened systemd unit, because the
        # daemon and the process then have different procfs mounts.)
        files = fds if way == SOFT_DIRTY else fds[:1]
        run_untrusted(peer.uid, lambda: self._check(files))

    def take(self) -> WriteFds:
        """Return the descriptors, which the caller then owns, or the reason for their refusal.

        The descriptors are also refused if the check takes longer than CHECK_WAIT_S.
        """
        found, self._found = self._found, WriteFds()
        checked = self._checked.wait(CHECK_WAIT_S)
        if self._own:
            return found
        found.close()
        if not checked:
            return WriteFds(refusal="the descriptors that it sent can't be checked")
        return WriteFds(refusal="the descriptors that it sent are not its own")

    def close(self) -> None:
        """Close the descriptors unless they were taken."""
        self._found.close()

    def _check(self, files: list[int]) -> None:
        self._own = all(file_system(fd) == PROC_SUPER_MAGIC for fd in files)
        self._checked.set()
