# SPDX-License-Identifier: Apache-2.0
"""Memory cgroups of commands.

The hierarchies of the first tests are ordinary folders:

    /proc/self/mounts   where each hierarchy is mounted
    /proc/self/cgroup   the path of this process's group in each hierarchy
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host import memory_group
from sentineld.host.memory_group import available_bytes, limited_command

LIMIT_BYTES = 96 << 20


@pytest.fixture
def without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {name: way for name, way in memory_group._WAYS.items() if name != "systemd"}
    monkeypatch.setattr(memory_group, "_WAYS", ways)


def proc(folder: Path, mounts: str, groups: str) -> Path:
    """A /proc with these files; "{}" in mounts stands for the folder."""
    own = folder / "proc" / "self"
    own.mkdir(parents=True)
    (own / "mounts").write_text(mounts.replace("{}", str(folder)))
    (own / "cgroup").write_text(groups)
    return folder / "proc"


V2 = "cgroup2 {}/unified cgroup2 rw,nosuid 0 0\n"
V1 = "cgroup {}/cpu cgroup rw,cpu,cpuacct 0 0\ncgroup {}/memory cgroup rw,memory 0 0\n"


@pytest.mark.usefixtures("without_systemd")
@pytest.mark.parametrize(
    ("enabled", "parent"), [("unified/a/b", "unified/a/b"), ("unified/a", "unified/a")]
)
def test_v2_needs_a_parent_with_the_memory_controller(
    tmp_path: Path, enabled: str, parent: str
) -> None:
    (tmp_path / "unified/a/b").mkdir(parents=True)
    for folder in ("unified", "unified/a", "unified/a/b"):
        given = "cpu memory pids" if folder == enabled else "cpu"
        (tmp_path / folder / "cgroup.subtree_control").write_text(given)
    limited = limited_command(LIMIT_BYTES, proc(tmp_path, V2, "0::/a/b\n"))
    assert limited.folder == tmp_path / parent / f"sentinelctl-{os.getpid()}"
    assert (limited.folder / "memory.max").read_text() == str(LIMIT_BYTES)


@pytest.mark.usefixtures("without_systemd")
@pytest.mark.parametrize(("path", "parent"), [("/a/b", "memory/a/b"), ("/host/only", "memory")])
def test_v1_takes_the_hierarchy_of_the_memory_controller(
    tmp_path: Path, path: str, parent: str
) -> None:
    (tmp_path / "memory/a/b").mkdir(parents=True)
    groups = f"3:cpu,cpuacct:/x\n2:memory:{path}\n0::/y\n"
    limited = limited_command(LIMIT_BYTES, proc(tmp_path, V1, groups))
    assert limited.folder == tmp_path / parent / f"sentinelctl-{os.getpid()}"
    assert (limited.folder / "memory.limit_in_bytes").read_text() == str(LIMIT_BYTES)


@pytest.mark.usefixtures("without_systemd")
def test_without_any_hierarchy_the_error_gives_each_reason(tmp_path: Path) -> None:
    mounts = "proc /proc proc rw 0 0\ncgroup2 {}/unified cgroup2 rw 0 0\n"
    with pytest.raises(SentinelError) as refused:
        limited_command(LIMIT_BYTES, proc(tmp_path, mounts, "0::/\n"))
    assert str(refused.value) == (
        f"memory can't be limited: cgroup v2: {tmp_path}/unified and its parent have no memory "
        "controller for their children; cgroup v1: it is not mounted (run as root, or in a login "
        "session of systemd)"
    )


@pytest.mark.usefixtures("without_systemd")
def test_a_command_does_not_get_more_memory_than_its_limit() -> None:
    try:
        limited = limited_command(LIMIT_BYTES)
    except SentinelError as error:
        pytest.skip(str(error))
    try:
        code = "import os; held = bytearray(os.urandom(1 << 20)) * 200; print(os.getpid())"
        command = [*limited.prefix, sys.executable, "-S", "-c", code]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate(timeout=120)
        # The kernel swaps the memory beyond the limit, or ends the process if there is no swap.
        assert (process.returncode, output) in ((0, f"{process.pid}\n"), (-9, ""))
        assert LIMIT_BYTES // 2 < limited.peak_bytes() <= LIMIT_BYTES
    finally:
        limited.close()
    assert limited.folder is not None
    assert not limited.folder.exists()


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
        (folder / "memory.stat").write_text(f"cache 0\ninactive_file {cached * MIB}\n")
    assert available_bytes(7, found) == 50 * MIB
    (group.parent / "memory.usage_in_bytes").write_text("0")
    assert available_bytes(7, found) == 500 * MIB


def test_every_process_has_available_memory() -> None:
    assert 0 < available_bytes(os.getpid()) < 1 << 50
