# SPDX-License-Identifier: Apache-2.0
"""Identifies the process that a shim's connection comes from, and checks who owns this process.

SO_PEERCRED names the process that called connect(). The kernel never updates this information. The
process may since have passed the socket on, executed a setuid program, or exited. The pid of an
exited process can be reused. If the daemon relied on the pid alone, a user could attach, record and
trace another user's process.

How the process is identified:

- By a pidfd, so that reuse of the pid is noticed. SO_PEERPIDFD (Linux 6.5) gives a pidfd of the
  process that called connect(). On earlier kernels the daemon opens a pidfd for the pid that
  SO_PEERCRED gives. If that pid was reused before the daemon opened the pidfd, the checks below
  apply to the process that has the pid now.
- By the sender of the data: FrameSocket.receive() compares the sender that the kernel reports
  (SCM_CREDENTIALS) with SO_PEERCRED. A child that inherits the socket is therefore refused.

require_own() checks that the user who connected owns the process. The daemon calls it
when the hello (a shim's first message) arrives, before each control command that inspects the
process, once a second while the process is attached, and after a backend has opened a watch of the
process. These conditions must hold:

- The process has user memory, so it is not a kernel thread.
- Its real, effective, saved and file-system user IDs all equal the user ID at the time of
  connect(), and its group IDs all equal the group ID at that time. A setuid program has other IDs.
- The process is dumpable. The files in /proc of a process that is not dumpable belong to root, so
  the owner of /proc/PID/mem shows whether an unprivileged user may read or trace the process
  (ptrace(2), "PTRACE_MODE_READ"). A process is not dumpable if its program is setuid or setgid or
  has file capabilities, if the user is not allowed to read the program, or if the process sets
  PR_SET_DUMPABLE to 0. The owner of the folder /proc/PID itself does not show this: that owner is
  always the effective user.
- The process has not exited, according to its pidfd. This is checked after the files in /proc were
  read; if the process has not exited by then, the files belonged to it.

If root connected, the owner of the files proves nothing. That is harmless, because root may
inspect any process.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from sentineld.base.errors import SentinelError
from sentineld.base.small_file import read_small_file
from sentineld.control.frames import FrameSocket
from sentineld.observe.pidfd import Pidfd, no_such_process

_IDS = re.compile(r"^(Uid|Gid):(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Peer:
    """The process that connected, pinned by a pidfd that this object owns."""

    pid: int
    uid: int  # at the time of connect(), or of opening a process without the shim; like `gid`
    gid: int
    process: Pidfd

    @classmethod
    def of(cls, connection: FrameSocket) -> Peer:
        """The peer of a connection, checked by require_own().

        Raises SentinelError "not-permitted" or "no-such-process", or OSError if no descriptor is
        free.
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
        """Check that the user who connected owns the process; see the module's docstring.

        Raises SentinelError "not-permitted" or "no-such-process", or OSError if no descriptor is
        free.
        """
        try:
            status = read_small_file(f"/proc/{self.pid}/status").decode(errors="replace")
            owner = os.stat(f"/proc/{self.pid}/mem").st_uid
        except (FileNotFoundError, ProcessLookupError):
            raise no_such_process(self.pid) from None
        if self.process.exited():
            raise no_such_process(self.pid)
        ids = {
            name: [int(field) for field in fields.split()] for name, fields in _IDS.findall(status)
        }
        if ids != {"Uid": [self.uid] * 4, "Gid": [self.gid] * 4}:
            raise self._refused(
                f"its user IDs are {ids.get('Uid')} and its group IDs are {ids.get('Gid')}, but"
                f" all of them must be those of user {self.uid}, group {self.gid}"
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
            "run the program as one user, without setuid programs or file capabilities",
        )


def _peer_pidfd(connection: FrameSocket, pid: int) -> int | None:
    """A pidfd of the peer from the connection; None if the kernel lacks SO_PEERPIDFD."""
    try:
        return connection.peer_pidfd()
    except OSError as error:
        if error.errno == errno.ENOPROTOOPT:
            return None
        if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENODATA):
            raise no_such_process(pid) from None
        raise


def require_owner(pid: int, owner_uid: int, caller_uid: int) -> None:
    """Raise SentinelError "not-permitted" unless the caller is the process's owner or root."""
    if caller_uid not in (0, owner_uid):
        raise SentinelError(
            "not-permitted",
            f"process {pid} belongs to another user",
            "ask its owner, or run as root",
        )
