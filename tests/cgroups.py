# SPDX-License-Identifier: Apache-2.0
"""A cgroup that exists during a test."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentineld.host.memory_group import UnavailableError, group_of
from sentineld.host.mounts import Mount, mounts_of, read_mountinfo
from tests.required import unless_required

PROC = Path("/proc")
KINDS = {"v2": "cgroup2", "v1": "cgroup"}
"""For each cgroup version: the type of its file system."""


@contextmanager
def cgroup(
    version: str = "any", name: str = "sentineld-test", controller: str = ""
) -> Iterator[Path]:
    """The folder of a new cgroup. A test may remove the cgroup, but must end the processes in it.

    version: "v1", "v2", or "any" (v2 if possible, otherwise v1).
    controller: the controller that the cgroup must have, such as "memory"; "": none. On a
        machine with v1 and v2, v2 can lack all controllers.

    Skips the test if no such cgroup can be created; see tests/required.py.
    """
    problems = []
    for tried in KINDS if version == "any" else (version,):
        try:
            folder = _parent(tried, controller) / f"{name}-{os.getpid()}"
            folder.mkdir()
            break
        except (UnavailableError, OSError) as error:
            problems.append(f"{tried}: {error}")
    else:
        problem = f"no cgroup can be created here: {'; '.join(problems)}"
        mounted = {mount.kind for mount in _mounts()}
        # A machine may have cgroups, but not of the version that the test needs. Then the test
        # is skipped even if the environment requires cgroups.
        if version == "any" or KINDS[version] in mounted or not mounted:
            unless_required("cgroup", problem)
        pytest.skip(problem)
    try:
        yield folder
    finally:
        if folder.exists():
            remove(folder)


def remove(folder: Path) -> None:
    """Remove a cgroup and its descendants as soon as the processes in them have exited."""
    for child in sorted(folder.rglob("*"), reverse=True):
        if child.is_dir():
            _remove_one(child)
    _remove_one(folder)


def _remove_one(folder: Path) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            folder.rmdir()
        except OSError:
            assert time.monotonic() < deadline_s, f"{folder} is not empty"
            time.sleep(0.05)
        else:
            return


def join(folder: Path, pid: int) -> None:
    """Move a process into a cgroup."""
    (folder / "cgroup.procs").write_text(str(pid))


def path_in_hierarchy(folder: Path) -> str:
    """The path of a cgroup as /proc/PID/cgroup shows it."""
    points = [mount.point for mount in _mounts() if folder.is_relative_to(mount.point)]
    return f"/{folder.relative_to(max(points))}"


def _mounts() -> list[Mount]:
    mounts = mounts_of(read_mountinfo(PROC / "self/mountinfo"))
    return [mount for mount in mounts if mount.kind in KINDS.values()]


def _parent(version: str, controller: str) -> Path:
    """The cgroup in which tests make their cgroups. Raises UnavailableError or OSError."""
    if version == "v1":
        return group_of(PROC, "self", KINDS[version], controller or "memory")[1]
    own = group_of(PROC, "self", KINDS[version], "")[1]
    for parent in (own, own.parent):
        if not controller or controller in _controllers_of_children(parent):
            return parent
    raise UnavailableError(f"{own} and its parent have no {controller} controller for children")


def _controllers_of_children(folder: Path) -> list[str]:
    control = folder / "cgroup.subtree_control"
    return control.read_text().split() if control.exists() else []
