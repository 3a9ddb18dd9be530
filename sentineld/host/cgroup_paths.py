# SPDX-License-Identifier: Apache-2.0
"""The cgroups of a process, v1 and v2."""

from __future__ import annotations


def cgroup_paths(text: str) -> dict[str, str]:
    """The paths of a process's cgroups, by hierarchy: "" for v2, "name=systemd" or a controller
    such as "memory" for v1. Empty if no hierarchy is mounted.

    text: the content of /proc/PID/cgroup, whose format is in cgroups(7).
    """
    found: dict[str, str] = {}
    for line in filter(None, text.split("\n")):
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found
