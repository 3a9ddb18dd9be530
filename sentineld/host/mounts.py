# SPDX-License-Identifier: Apache-2.0
"""File systems, as /proc/self/mountinfo lists them; see proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems whose files are in memory."""


def filesystem_of(folder: Path, mountinfo: str) -> str:
    """The type of a folder's file system. mountinfo: the text of /proc/self/mountinfo."""
    found, best = "", -1
    for point, kind in _mounts(mountinfo):
        # Of several mounts on one folder, the last one is visible.
        if folder.is_relative_to(point) and len(point.parts) >= best:
            found, best = kind, len(point.parts)
    return found


def unescaped(name: str) -> str:
    """Decode a name from a file in /proc, where the kernel writes spaces and a few other characters
    as octal numbers."""
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), name)


def _mounts(mountinfo: str) -> Iterator[tuple[Path, str]]:
    """(mount point, type) of each mount, in the order in which they were mounted."""
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        yield Path(unescaped(mount.split()[4])), source.split()[0]
