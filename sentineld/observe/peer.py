# SPDX-License-Identifier: Apache-2.0
"""The process at the other end of a shim's connection: which it is, and that it is its user's own.

SO_PEERCRED names the process that called connect(), once and for all. That process may have passed
the socket on, called a setuid program, or exited and left its pid to another one. A daemon that
believed in the number would let a user attach, record and trace processes that are not the user's.

Which process it is:

- A pidfd pins it, so that the pid can't be reused unnoticed: SO_PEERPIDFD (Linux 6.5), which the
  kernel takes from the connection itself. Earlier kernels open the pid of SO_PEERCRED instead. If
  that pid was reused before, the checks below hold for the process that has it now.
- Only this process may speak: FrameSocket.receive() compares the sender of all data, as the kernel
  reports it (SCM_CREDENTIALS), with SO_PEERCRED. So a child that inherits the socket is refused.

That it is its user's own (require_own()), which is checked at the hello, before each verb that
looks into the process, once a second while it is managed, and after its pages' observer is open:

- It has not exited, by the pidfd; checked last, so that what was read in /proc was its own.
- Its real, effective, saved and file-system user IDs are the peer's user ID, and its group IDs the
  peer's group ID. A setuid program has others.
- It is dumpable, by the owner of /proc/PID/mem: the kernel gives the files of another process to
  root. This is its own answer to the question whether an unprivileged user may read or trace
  the process (ptrace(2), "PTRACE_MODE_READ"). It covers programs with setuid, setgid or file
  capabilities, those that the user may not read, and those that ask for protection by prctl(2).
  The owner of the folder /proc/PID would not do: it is always the effective user.
- It has user memory, and so is no kernel thread.

For a peer that is root the owner says nothing, but root may look into any process anyway.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameSocket
from sentineld.observe.pidfd import Pidfd, no_such_process


@dataclass(frozen=True)
class Peer:
    """The process that connected, pinned by a pidfd that this object owns."""

    pid: int
    uid: int  # at connect(), as gid
    gid: int
    process: Pidfd

    @classmethod
    def of(cls, connection: FrameSocket) -> Peer:
        """The peer of a connection, checked by require_own().

        Raises SentinelError "not-permitted" or "no-such-process", and OSError without a free
        descriptor.
        """
        pid, uid, gid = connection.peer()
        if pid <= 0:
            raise SentinelError(
                "not-permitted",
                "the process that connected has no process ID here",
                "run the daemon in the process's PID namespace, or in one that contains it",
            )
        peer = cls(pid, uid, gid, Pidfd(pid, fd=_peer_pidfd(connection, pid)))
        try:
            peer.require_own()
        except BaseException:
            peer.close()
            raise
        return peer

    def require_own(self) -> None:
        """Check that the process is its user's own; see the module's docstring.

        Raises SentinelError "not-permitted" or "no-such-process".
        """
        folder = Path(f"/proc/{self.pid}")
        try:
            status = (folder / "status").read_text(errors="replace")
            owner = os.stat(folder / "mem").st_uid
        except (FileNotFoundError, ProcessLookupError):
            raise no_such_process(self.pid) from None
        if self.process.exited():
            raise no_such_process(self.pid)
        ids = {
            name: [int(field) for field in fields.split()]
            for name, _, fields in (line.partition(":") for line in status.splitlines())
            if name in ("Uid", "Gid")
        }
        if ids != {"Uid": [self.uid] * 4, "Gid": [self.gid] * 4}:
            raise self._refused(
                f"its user IDs are {ids.get('Uid')} and its group IDs are {ids.get('Gid')}, but it"
                f" connected as user {self.uid}, group {self.gid}"
            )
        if owner != self.uid:
            raise self._refused("it is protected against its own user (not dumpable)")
        if "\nVmSize:" not in status:
            raise self._refused("it has no user memory")

    def close(self) -> None:
        """Close the pidfd."""
        self.process.close()

    def _refused(self, why: str) -> SentinelError:
        return SentinelError(
            "not-permitted",
            f"process {self.pid} can't be managed: {why}",
            "run the training as one user, without setuid programs and file capabilities",
        )


def _peer_pidfd(connection: FrameSocket, pid: int) -> int | None:
    """A pidfd from the connection; None if the kernel has none to offer."""
    try:
        return connection.peer_pidfd()
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):
            raise no_such_process(pid) from None
        raise
