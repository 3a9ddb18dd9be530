# SPDX-License-Identifier: Apache-2.0
"""Opens a process that a session manages without the shim, and checks that the caller may manage
it.

By sending a hello, its first message to the daemon, a process under the shim agrees to be managed.
The processes that this module opens have not agreed. A user other than root may manage only a
process whose memory that user could read anyway (see observe/peer.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.proc_text import read_proc_text
from sentineld.observe.address_space import same_address_space
from sentineld.observe.anonymous import AnonymousPages
from sentineld.observe.mappings import read_mappings
from sentineld.observe.peer import Peer, require_owner
from sentineld.observe.pidfd import Pidfd, no_such_process, parent
from sentineld.shim.native import LIBRARY_NAME


class Member:
    """A process of a session, pinned by a pidfd and by its pagemap. Owns both descriptors."""

    def __init__(self, pid: int, caller_uid: int, span: int = 0) -> None:
        """span: number of the address space within the session; see spans.py.

        Raises SentinelError if there is no such process, the caller may not manage it, it runs
        under the shim, it has the address space of its parent, or another session or daemon manages
        it.
        """
        self.span = span
        process = Pidfd(pid)
        try:
            self.peer = _peer(pid, caller_uid, process)
            self.pages = AnonymousPages(pid)
            self._require_still_own(caller_uid)
        except (FileNotFoundError, ProcessLookupError):
            process.close()
            raise no_such_process(pid) from None
        except BaseException:
            process.close()
            raise

    def _require_still_own(self, caller_uid: int) -> None:
        """Check the owner again, because the process may have executed a setuid program since
        _peer() checked it: the pagemap may be that of this program. A pagemap that was opened
        before such an exec() shows nothing any more, and neither does one that was opened after it
        if the process has executed another program since. Closes the pagemap if it raises
        SentinelError or OSError."""
        try:
            if caller_uid != 0:
                self.peer.require_own()
        except BaseException:
            self.pages.close()
            raise

    @property
    def pid(self) -> int:
        """The process ID."""
        return self.peer.pid

    @property
    def process(self) -> Pidfd:
        """The pidfd."""
        return self.peer.process

    def require_address_space(self) -> None:
        """Raise ProcessLookupError if the process has exited or called exec()."""
        if self.process.exited():
            raise ProcessLookupError(f"process {self.pid} has exited")
        self.pages.require_address_space()

    def close(self) -> None:
        """Close both descriptors."""
        self.pages.close()
        self.peer.close()


def _peer(pid: int, caller_uid: int, process: Pidfd) -> Peer:
    status = read_proc_text(Path(f"/proc/{pid}/status"))
    if pid == os.getpid():
        raise SentinelError(
            "not-permitted", "the daemon does not manage itself", "give another PID"
        )
    if "\nVmSize:" not in status:
        if process.exited():
            raise no_such_process(pid)
        raise SentinelError(
            "not-permitted",
            f"process {pid} has no user memory: it is a kernel thread, or its main thread has "
            "exited",
            "give the PID of a running program",
        )
    fields = dict(line.split(":", 1) for line in status.split("\n") if ":" in line)
    peer = Peer(pid, int(fields["Uid"].split()[0]), int(fields["Gid"].split()[0]), process)
    if caller_uid != 0:
        require_owner(pid, peer.uid, caller_uid)
        peer.require_own()
    if any(LIBRARY_NAME in mapping.name for mapping in read_mappings(pid)):
        raise SentinelError(
            "wrong-state",
            f"process {pid} runs under the shim",
            "attach it with the daemon that listens on its SENTINELD_SHIM_SOCKET",
        )
    _require_own_memory(pid)
    return peer


def _require_own_memory(pid: int) -> None:
    """Refuse a process that has the address space of its parent. In a group that contains both
    processes, the memory would be counted twice. And after a later exec() of the process, the
    pagemap that the daemon had opened would still show the parent's memory."""
    parent_pid = parent(pid)
    if parent_pid and same_address_space(pid, parent_pid):
        raise SentinelError(
            "wrong-state",
            f"process {pid} has the same address space as its parent, process {parent_pid}",
            f"give PID {parent_pid}, or wait until process {pid} has called exec()",
        )
