# SPDX-License-Identifier: Apache-2.0
"""One process, held so that another one with the same pid is never taken for it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from pathlib import Path

from sentineld.base.errors import SentinelError

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PARENT_FIELD = 4
_START_TIME_FIELD = 22


def start_time_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot: field 22 of /proc/PID/stat.

    With the pid it names a process for as long as the machine is up. Raises
    SentinelError "no-such-process".
    """
    try:
        return _stat_field(pid, _START_TIME_FIELD)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise _no_such_process(pid) from error


def parent(pid: int) -> int:
    """The parent's process id; 0 once the process is gone."""
    try:
        return _stat_field(pid, _PARENT_FIELD)
    except OSError:
        return 0


def _stat_field(pid: int, field: int) -> int:
    """Field 3 or a later one of /proc/PID/stat, counted from 1 as proc(5) does."""
    text = Path(f"/proc/{pid}/stat").read_text()
    # field 2 is the command in parentheses, which may itself hold spaces and parentheses
    return int(text[text.rindex(")") + 2 :].split()[field - 3])


def children(pid: int) -> list[int]:
    """The processes whose parent is a thread of pid; empty once it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found.extend(int(child) for child in text.split())
    return found


class Pidfd:
    """A pidfd with the start time of its process; readable (poll) once that has exited."""

    def __init__(self, pid: int, start_ticks: int | None = None) -> None:
        """Open a process; with start_ticks only the one that started then.

        Raises SentinelError "no-such-process", also where pid is a thread.
        """
        self.pid = pid
        try:
            self._fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
                raise _no_such_process(pid) from error
            raise
        try:
            self.start_ticks = start_time_ticks(pid)
            # the fd was open before stat was read: if its process lives, stat was its own
            if self.exited() or start_ticks not in (None, self.start_ticks):
                raise _no_such_process(pid)
        except BaseException:
            self.close()
            raise

    @property
    def start_ns(self) -> int:
        """Start of the process on CLOCK_BOOTTIME, rounded down to a clock tick."""
        return self.start_ticks * _TICK_NS

    def fileno(self) -> int:
        """The pidfd, for select and poll."""
        return self._fd

    def exited(self) -> bool:
        """Whether the process has exited (it may still be a zombie)."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the fd."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _no_such_process(pid: int) -> SentinelError:
    return SentinelError("no-such-process", f"no process has pid {pid}", "see ps -e")
