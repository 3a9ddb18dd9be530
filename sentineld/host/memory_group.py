# SPDX-License-Identifier: Apache-2.0
"""The memory cgroup (v2 or v1) of a process, and how much memory the process can still get."""

from __future__ import annotations

import re
from pathlib import Path

from sentineld.base.proc_text import read_proc_text
from sentineld.host.cgroup_paths import cgroup_paths
from sentineld.host.mounts import mounts_of, read_mountinfo


class UnavailableError(Exception):
    """A hierarchy of cgroups, or systemd, cannot be used here; the error's text says why."""


def available_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Memory that a process can still get: the smallest of the machine's MemAvailable, the room in
    the process's memory cgroup, and the room in each ancestor of this group. Raises OSError."""
    meminfo = re.search(r"^MemAvailable:\s*(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    found = int(meminfo[1]) << 10 if meminfo else 0
    for kind, controller, files in (
        ("cgroup2", "", ("memory.max", "memory.current")),
        ("cgroup", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ):
        try:
            mount, group = group_of(proc, str(pid), kind, controller)
        except UnavailableError:
            continue
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            found = min(found, _room_bytes(folder, *files, found))
    return found


def _room_bytes(folder: Path, limit_name: str, usage_name: str, unlimited: int) -> int:
    """The limit of a group minus its usage; inactive page cache counts as free. If the group has no
    limit, returns `unlimited`."""
    try:
        limit = (folder / limit_name).read_text().strip()
        used_bytes = int((folder / usage_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return unlimited  # the root group has no such files
    if limit == "max":
        return unlimited
    # For a v1 group, the usage and the fields total_* include the group's descendants; the fields
    # without this prefix do not.
    cached_bytes = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
    return max(int(limit) - used_bytes + cached_bytes, 0)


def group_of(proc: Path, pid: str, kind: str, controller: str) -> tuple[Path, Path]:
    """(mount point of the hierarchy, folder of the process's cgroup).

    kind: type of the file system.
    controller: the controller of a v1 hierarchy; "" for v2.

    Raises UnavailableError or OSError.
    """
    for mount in mounts_of(read_mountinfo(proc / "self/mountinfo")):
        if mount.kind == kind and (not controller or controller in mount.options):
            break
    else:
        raise UnavailableError("it is not mounted")
    path = cgroup_paths(read_proc_text(proc / pid / "cgroup", "surrogateescape")).get(controller)
    if path is None:
        raise UnavailableError("this process has no group in it")
    own = mount.point / path.lstrip("/")
    # In a container, the path can be the host's, which does not exist in the container.
    return mount.point, own if own.is_dir() else mount.point
