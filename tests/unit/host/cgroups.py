# SPDX-License-Identifier: Apache-2.0
"""Ordinary folders in place of cgroup hierarchies. Two files describe the hierarchies:

/proc/self/mountinfo   where each hierarchy is mounted
/proc/self/cgroup      the path of this process's cgroup in each hierarchy
"""

from __future__ import annotations

from pathlib import Path

V2 = "30 1 0:26 / {}/unified rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "31 1 0:27 / {}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 1 0:28 / {}/memory rw - cgroup cgroup rw,memory\n"
)


def proc(folder: Path, mounts: str, groups: str) -> Path:
    """A /proc whose two files have these contents; "{}" in mounts is replaced with the folder's
    path."""
    own = folder / "proc" / "self"
    own.mkdir(parents=True)
    (own / "mountinfo").write_text(mounts.replace("{}", str(folder)))
    (own / "cgroup").write_text(groups)
    return folder / "proc"
