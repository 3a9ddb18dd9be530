# SPDX-License-Identifier: Apache-2.0
"""The targets of sessions of policy `temperature`: one process, a process tree or a cgroup."""

from __future__ import annotations

import errno
import os
import select
import shlex
from typing import Protocol

from sentineld.base.errors import SentinelError
from sentineld.base.text import printable
from sentineld.observe.cgroup import Cgroup
from sentineld.observe.memory_use import has_memory
from sentineld.observe.pidfd import Pidfd, children, parent, start_time_ticks
from sentineld.session.lifecycle import CALLED_EXEC, EXITED

PROCESSES_MAX = 512
"""Largest number of processes of a session. Each takes two or three descriptors of the daemon."""
LISTED_MAX = 1 << 16
"""Number of processes of a cgroup that are listed, to limit the time and the memory that this
takes."""
EXIT_S = 1.0
"""Time to wait for the exit of a process whose address space is gone. A process that does not exit
in this time has called exec(), or only its main thread has exited."""
MAIN_THREAD_EXITED = "the main thread exited, so the kernel hides the memory of the other threads"


def _has_threads(pid: int) -> bool:
    """Whether a process has threads besides its main thread."""
    try:
        return len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def _replaced(process: Pidfd) -> bool:
    """Whether a process has exited and another process has its ID now."""
    if not process.exited():
        return False
    try:
        return start_time_ticks(process.pid) != process.start_ticks
    except (SentinelError, OSError):  # no process has the ID, or no descriptor is free
        return False


class Target(Protocol):
    """The processes that a session manages."""

    name: str
    """Differs from the names of all other targets since the boot."""
    title: str
    """Names the target in messages; printable."""
    pid: int
    """ID of the process or of the tree's root, even after the root's exit; 0 for a cgroup. If the
    kernel reuses the root's ID, `pid` becomes the ID of another process of the tree."""
    cgroup: str
    """The folder of the cgroup; empty if the target is not a cgroup."""
    is_group: bool
    """Whether processes may join the target, and may call exec() without ending it."""

    def pids(self, most: int = PROCESSES_MAX) -> list[int]:
        """The current processes. If there are more than `most`, the list may be incomplete, but it
        is longer than `most`. It has all processes of earlier lists that have not left the target,
        unless its length is LISTED_MAX. Raises ProcessLookupError if there are no processes, and
        SentinelError if they cannot be listed."""

    def named_by(self, pid: int) -> bool:
        """Whether this is the ID of the target's process, or of the tree's root. After the exit of
        this process, its ID names the target until another process has it. May be called from any
        thread."""

    def why_ended(self) -> str:
        """Why the target has ended."""

    def close(self) -> None:
        """Close the descriptors."""


def argument_of(target: Target) -> str:
    """The argument by which a command names the target; printable, and quoted for a shell."""
    if target.cgroup:
        return f"--cgroup {shlex.quote(printable(target.cgroup))}"
    return str(target.pid)


class OneProcess:
    """A single process, until it exits or calls exec()."""

    is_group = False
    cgroup = ""

    def __init__(self, pid: int) -> None:
        """Raises SentinelError if there is no such process."""
        self.pid = pid
        self._process = Pidfd(pid)
        self.name = f"{pid}-{self._process.start_ticks}"
        self.title = f"process {pid}"

    def pids(self, most: int = PROCESSES_MAX) -> list[int]:
        """See Target."""
        if self._process.exited():
            raise ProcessLookupError(errno.ESRCH, f"process {self.pid} is gone")
        return [self.pid]

    def named_by(self, pid: int) -> bool:
        """See Target."""
        return pid == self.pid and not _replaced(self._process)

    def why_ended(self) -> str:
        """See Target. Blocks for up to EXIT_S."""
        poll = select.poll()
        poll.register(self._process.fileno(), select.POLLIN)
        if poll.poll(EXIT_S * 1e3):
            return EXITED
        if has_memory(self.pid):
            return CALLED_EXEC
        return MAIN_THREAD_EXITED if _has_threads(self.pid) else EXITED

    def close(self) -> None:
        """See Target."""
        self._process.close()


class Tree:
    """A process and its descendants.

    Once a process has been found, it belongs to the tree until it exits, even if its parent exits
    first. If a process exits before its children have been found, they are not in the tree.
    """

    is_group = True
    cgroup = ""

    def __init__(self, pid: int) -> None:
        """pid: the root. Raises SentinelError if there is no such process."""
        self.pid = pid
        self._root = root = Pidfd(pid)
        self._known = {pid: root}
        self.name = f"{pid}-{root.start_ticks}-tree"
        self.title = f"tree of process {pid}"

    def pids(self, most: int = PROCESSES_MAX) -> list[int]:
        """See Target."""
        for pid, process in list(self._known.items()):
            if process.exited():
                process.close()
                del self._known[pid]
        if not self._known:
            raise ProcessLookupError(errno.ESRCH, f"{self.title} is gone")
        if _replaced(self._root):
            self.pid, self._root = next(iter(self._known.items()))
        unseen = list(self._known)
        while unseen:
            pid = unseen.pop()
            for child in children(pid):
                if len(self._known) > most:  # each known process takes a descriptor
                    return list(self._known)
                if child not in self._known and self._add(child, pid):
                    unseen.append(child)
        return list(self._known)

    def named_by(self, pid: int) -> bool:
        """See Target."""
        root = self._root  # pids() may replace it meanwhile
        return pid == root.pid and not _replaced(root)

    def _add(self, pid: int, parent_pid: int) -> bool:
        try:
            process = Pidfd(pid)
        except Exception:  # it has already exited, or the daemon has no free descriptor
            return False
        if parent(pid) != parent_pid:
            process.close()  # another process has the ID now
            return False
        self._known[pid] = process
        return True

    def why_ended(self) -> str:
        """See Target."""
        return "all processes of the tree have exited"

    def close(self) -> None:
        """See Target."""
        for process in self._known.values():
            process.close()
        self._known = {}


class CgroupTarget:
    """The processes of a cgroup and of its descendants."""

    is_group = True
    pid = 0

    def __init__(self, path: str) -> None:
        """path: see Cgroup. Raises SentinelError."""
        self._group = Cgroup(path)
        self.cgroup = str(self._group.folder)
        self.name = f"cgroup-{self._group.identity}"
        self.title = f"cgroup {self._group.shown}"

    def pids(self, most: int = PROCESSES_MAX) -> list[int]:
        """See Target."""
        found = self._group.pids(LISTED_MAX)  # all, because the managed ones may be the last ones
        if not found:
            raise ProcessLookupError(errno.ESRCH, f"{self.title} is empty")
        return found

    def named_by(self, pid: int) -> bool:
        """See Target."""
        return False

    def why_ended(self) -> str:
        """See Target."""
        if self._group.removed():
            return "the cgroup was removed"
        return "all processes of the cgroup have exited or left it"

    def close(self) -> None:
        """See Target."""
        self._group.close()
