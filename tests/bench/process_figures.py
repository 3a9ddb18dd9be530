# SPDX-License-Identifier: Apache-2.0
"""Memory, faults and CPU time of another process, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def anonymous_peak_bytes(pid: int) -> int:
    """Largest resident size of a process so far, without the files that it maps."""
    status = (PROC / str(pid) / "status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    kib = int(fields["VmHWM"].split()[0]) - int(fields["RssFile"].split()[0])
    return kib << 10


def major_faults(pid: int) -> int:
    """Number of page faults of a process so far that had to read from a disk or from zram."""
    return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[9])


def cpu_seconds(pid: int) -> float:
    """CPU seconds (user and system, all threads) that a process has used."""
    stat = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
