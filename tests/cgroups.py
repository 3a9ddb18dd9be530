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

PROC = Path("/proc")
HIERARCHIES = {"v1": ("cgroup", "memory"), "v2": ("cgroup2", ""), "cpuset": ("cgroup", "cpuset")}
"""Arguments of group_of(), by version."""


@contextmanager
def cgroup(version: str, name: str = "sentineld-test") -> Iterator[Path]:
    """The folder of a new cgroup; version: v1 (memory hierarchy), v2, or cpuset (v1's cpusets).

    Skips the test if no cgroup can be created. A test may remove the cgroup, but must end the
    processes in it.
    """
    try:
        parent = group_of(PROC, "self", *HIERARCHIES[version])[1]
        folder = parent / f"{name}-{os.getpid()}"
        folder.mkdir()
    except (UnavailableError, OSError) as error:
        pytest.skip(f"no cgroup {version} can be created here: {error}")
    try:
        yield folder
    finally:
        if folder.exists():
            remove(folder)


def remove(folder: Path) -> None:
    """Remove a cgroup and its descendants, when the processes in it have exited."""
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
