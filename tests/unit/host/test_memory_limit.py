# SPDX-License-Identifier: Apache-2.0
"""Commands in memory cgroups of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host import memory_limit
from sentineld.host.memory_limit import limited_command
from tests.unit.host.cgroups import V1, V2, proc

LIMIT_BYTES = 96 << 20


@pytest.fixture
def without_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    ways = {name: way for name, way in memory_limit._WAYS.items() if name != "systemd"}
    monkeypatch.setattr(memory_limit, "_WAYS", ways)


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
    mounts = "29 1 0:25 / /proc rw - proc proc rw\n" + V2
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
        # The kernel swaps out the memory beyond the limit. Without swap, it kills the process.
        assert (process.returncode, output) in ((0, f"{process.pid}\n"), (-9, ""))
        assert limited.folder is not None
        names = ("memory.peak", "memory.max_usage_in_bytes")  # cgroup v2, v1
        peak = next(file for name in names if (file := limited.folder / name).exists())
        assert LIMIT_BYTES // 2 < int(peak.read_text()) <= LIMIT_BYTES
    finally:
        limited.close()
    assert not limited.folder.exists()
