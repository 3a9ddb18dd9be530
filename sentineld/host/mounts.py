# SPDX-License-Identifier: Apache-2.0
"""File systems, as /proc/self/mountinfo lists them; see proc_pid_mountinfo(5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sentineld.base.proc_text import read_proc_text

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
"""File systems whose files are in memory."""


class Mount(NamedTuple):
    """A mounted file system."""

    point: Path
    kind: str  # type of the file system
    options: tuple[str, ...]  # of the file system; those of the mount point are left out


def read_mountinfo(file: Path = Path("/proc/self/mountinfo")) -> str:
    """The text for filesystem_of() and mounts_of(). Raises OSError."""
    return read_proc_text(file, "surrogateescape")


def filesystem_of(folder: Path, mountinfo: str) -> str:
    """The type of a folder's file system. mountinfo: see read_mountinfo()."""
    found, best = "", -1
    for mount in mounts_of(mountinfo):
        # Of several mounts on one folder, the last one is visible.
        if folder.is_relative_to(mount.point) and len(mount.point.parts) >= best:
            found, best = mount.kind, len(mount.point.parts)
    return found


def unescaped(name: str) -> str:
    """Decode a name from a file in /proc, where the kernel writes spaces and a few other characters
    as octal numbers."""
    return re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), name)


def mounts_of(mountinfo: str) -> Iterator[Mount]:
    """The mounts, in the order in which they were mounted. mountinfo: see read_mountinfo()."""
    # The kernel escapes only spaces, tabs, newlines and backslashes, so a name can contain other
    # characters at which split() and splitlines() would split.
    for line in filter(None, mountinfo.split("\n")):
        mount, _, source = line.partition(" - ")
        kind, *_, options = source.split(" ")
        yield Mount(Path(unescaped(mount.split(" ")[4])), kind, tuple(options.split(",")))
