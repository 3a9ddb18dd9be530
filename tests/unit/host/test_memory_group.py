# SPDX-License-Identifier: Apache-2.0
"""The amount of memory that a process can still get."""

from __future__ import annotations

import os
from pathlib import Path

from sentineld.host.memory_group import available_bytes, group_of
from tests.unit.host.cgroups import V1, proc

MIB = 1 << 20


def test_available_memory_is_what_the_groups_leave(tmp_path: Path) -> None:
    found = proc(tmp_path, V1, "2:memory:/a/b\n")
    (found / "meminfo").write_text("MemFree: 1 kB\nMemAvailable:  4096000 kB\n")
    (found / "7").mkdir()
    (found / "7" / "cgroup").write_text("2:memory:/a/b\n")
    group = tmp_path / "memory/a/b"
    group.mkdir(parents=True)
    assert available_bytes(7, found) == 4000 * MIB
    for folder, limit, used, cached in ((group, 900, 500, 100), (group.parent, 1000, 950, 0)):
        (folder / "memory.limit_in_bytes").write_text(str(limit * MIB))
        (folder / "memory.usage_in_bytes").write_text(str(used * MIB))
        (folder / "memory.stat").write_text(
            f"cache 0\ninactive_file 0\ntotal_inactive_file {cached * MIB}\n"
        )
    assert available_bytes(7, found) == 50 * MIB
    (group.parent / "memory.usage_in_bytes").write_text("0")
    assert available_bytes(7, found) == 500 * MIB


def test_a_hierarchy_can_be_mounted_in_a_folder_with_a_space(tmp_path: Path) -> None:
    found = proc(tmp_path, V1, "2:memory:/a\n")
    mounts = found / "self/mountinfo"
    mounts.write_text(mounts.read_text().replace("/memory ", "/the\\040memory "))
    (tmp_path / "the memory/a").mkdir(parents=True)
    expected = (tmp_path / "the memory", tmp_path / "the memory/a")
    assert group_of(found, "self", "cgroup", "memory") == expected


def test_the_name_of_a_group_may_contain_a_carriage_return(tmp_path: Path) -> None:
    found = proc(tmp_path, V1, "2:memory:/a\rb\n")
    (found / "self/cgroup").write_bytes(b"2:memory:/a\rb\n")
    (tmp_path / "memory/a\rb").mkdir(parents=True)
    expected = (tmp_path / "memory", tmp_path / "memory/a\rb")
    assert group_of(found, "self", "cgroup", "memory") == expected


def test_every_process_has_available_memory() -> None:
    assert 0 < available_bytes(os.getpid()) < 1 << 50
