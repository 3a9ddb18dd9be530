# SPDX-License-Identifier: Apache-2.0
"""The mappings of a process, from /proc/PID/maps."""

from __future__ import annotations

from pathlib import Path

from sentineld.base.proc_text import open_proc_text
from sentineld.model.records import MemoryMapping

MAPPINGS_MAX = 65_536
"""Slightly above the kernel's default limit, vm.max_map_count = 65530."""


def read_mappings(pid: int, proc: Path = Path("/proc")) -> tuple[MemoryMapping, ...]:
    """The process's first MAPPINGS_MAX mappings, ascending. A mapping without a name is called
    "anonymous".

    Raises OSError if the process has exited or access is denied.
    """
    found = []
    with open_proc_text(proc / str(pid) / "maps") as lines:
        for line in lines:
            # start-end permissions offset device inode path
            parts = line.rstrip("\n").split(maxsplit=5)
            start, _, end = parts[0].partition("-")
            name = parts[5] if len(parts) > 5 else "anonymous"
            found.append(MemoryMapping(int(start, 16), int(end, 16), name))
            if len(found) == MAPPINGS_MAX:
                break
    return tuple(found)
