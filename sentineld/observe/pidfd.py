# SPDX-License-Identifier: Apache-2.0
"""Identifies processes by pidfds and start times, so that the reuse of a pid is noticed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.base.small_file import read_small_file

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PARENT_FIELD = 4
_START_TIME_FIELD = 22
_CPUCLOCK_SCHED = 2
"""The clock of a process's CPU time has the ID ~PID << 3 | CPUCLOCK_SCHED; see
include/linux/posix-timers_types.h of the kernel, and clock_getcpuclockid(3)."""


def start_time_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot: field 22 of /proc/PID/stat.

    Pid and start time identify a process until the next boot. Raises
    SentinelError "no-such-process".
    """
    try:
        return _stat_field(pid, _START_TIME_FIELD)
    except (FileNotFoundError, ProcessLookupError) as error:
        raise no_such_process(pid) from error


def parent(pid: int) -> int:
    """The parent's process id; 0 if the process has exited."""
    try:
        return _stat_field(pid, _PARENT_FIELD)
    except OSError:
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU seconds that all threads of a process have used, in user and in kernel mode.

    Raises ProcessLookupError if no process has this ID.
    """
    try:
        return time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has exited") from error


def _stat_field(pid: int, field: int) -> int:
    """A field of /proc/PID/stat. field: its number, from 1 as in proc(5); at least 4."""
    text = read_small_file(f"/proc/{pid}/stat")
    # Field 2 is the command in parentheses, which may contain spaces and parentheses.
    values = text[text.rindex(b")") + 2 :].split()
    return int(values[field - 3])


def children(pid: int) -> list[int]:
    """The child processes of all threads of pid; empty if it has exited."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_text()
                found.extend(int(child) for child in text.split())
    return found


class Pidfd:
    """A pidfd and the start time of its process. After the exit of the process, poll() reports the
    pidfd as readable."""

    def __init__(self, pid: int, start_ticks: int | None = None, fd: int | None = None) -> None:
        """Open or take over a pidfd of a process.

        start_ticks: refuse a process with another start time.
        fd: a pidfd of the process, which this object owns from now on; None: open a pidfd.

        Raises OSError. Raises SentinelError "no-such-process" if no process has this pid, the start
        time differs, or pid is the ID of a thread.
        """
        self.pid = pid
        try:
            self._fd = os.pidfd_open(pid) if fd is None else fd
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.EINVAL, errno.ENOENT):
                raise no_such_process(pid) from error
            raise
        try:
            self.start_ticks = start_time_ticks(pid)
            # The pidfd was opened before /proc/PID/stat was read. So if the pidfd's process has not
            # exited yet, the file is that of the same process.
            if self.exited() or start_ticks not in (None, self.start_ticks):
                raise no_such_process(pid)
        except BaseException:
            self.close()
            raise

    @property
    def start_ns(self) -> int:
        """Start time on CLOCK_BOOTTIME, rounded down to a clock tick."""
        return self.start_ticks * _TICK_NS

    def fileno(self) -> int:
        """The pidfd, for select and poll."""
        return self._fd

    def exited(self) -> bool:
        """Whether the process has exited (it may still be a zombie); true after close()."""
        fd = self._fd  # another thread may call close() meanwhile
        if fd < 0:
            return True
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the fd."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def no_such_process(pid: int) -> SentinelError:
    """The error for a pid without a process."""
    return SentinelError("no-such-process", f"no process has pid {pid}", "see ps -e")
