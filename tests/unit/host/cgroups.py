# SPDX-License-Identifier: Apache-2.0
"""Ordinary folders in place of cgroup hierarchies. Two files describe the hierarchies:

/proc/self/mounts   where each hierarchy is mounted
/proc/self/cgroup   the path of this process's cgroup in each hierarchy
"""

from __future__ import annotations

from pathlib import Path

V2 = "cgroup2 {}/unified cgroup2 rw,nosuid 0 0\n"
V1 = "cgroup {}/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup {}/memory cgroup rw,memory 0 0\n"


def proc(folder: Path, mounts: str, groups: str) -> Path:
    """A /proc whose two files have these contents; "{}" in mounts is replaced with the folder's
    path."""
    own = folder / "proc" / "self"
    own.mkdir(parents=True)
    (own / "mounts").write_text(mounts.replace("{}", str(folder)))
    (own / "cgroup").write_text(groups)
    return folder / "proc"
