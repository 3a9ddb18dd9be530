# SPDX-License-Identifier: Apache-2.0
"""Memory, faults, waits and CPU time of another process, from /proc."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PROC = Path("/proc")
TICK_HZ = os.sysconf("SC_CLK_TCK")


def stat_fields(pid: int) -> list[int]:
    """The fields of /proc/PID/stat from field 4 (the parent's pid) on; see proc_pid_stat(5)."""
    # Field 2, the name in parentheses, may contain spaces.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[1:]]


def memory_bytes(pid: int, name: str) -> int:
    """A size in /proc/PID/status, such as VmHWM, in bytes."""
    status = (PROC / str(pid) / "status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields[name].split()[0]) << 10


def anonymous_peak_bytes(pid: int) -> int:
    """Peak resident bytes of a process (VmHWM), minus the resident bytes of files (RssFile)."""
    return memory_bytes(pid, "VmHWM") - memory_bytes(pid, "RssFile")


def reset_resident_peak(pid: int) -> None:
    """Reset VmHWM to the current resident size (proc_pid_clear_refs(5))."""
    (PROC / str(pid) / "clear_refs").write_text("5")


def major_faults(pid: int) -> int:
    """Number of a process's page faults that have read from a disk or from zram."""
    return stat_fields(pid)[8]


def cpu_seconds(pid: int) -> float:
    """CPU seconds (user and system, all threads) that a process has used."""
    return sum(stat_fields(pid)[10:12]) / TICK_HZ


def waits(pid: int) -> int:
    """Number of times that a process's live threads have waited (voluntary context switches)."""
    found = 0
    for status in (PROC / str(pid) / "task").glob("*/status"):
        with contextlib.suppress(OSError):  # the thread has ended
            for line in status.read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches:"):
                    found += int(line.split()[1])
    return found
