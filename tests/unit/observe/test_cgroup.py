# SPDX-License-Identifier: Apache-2.0
"""The folder of a cgroup, mostly in made-up hierarchies.

tests/unit/heat/test_target.py reads real cgroups.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.mounts import Mount
from sentineld.observe.cgroup import LEVELS_MAX, Cgroup, cgroup_folder
from tests.cgroups import cgroup, join
from tests.unit.descriptors import descriptor_limit, open_descriptors


@pytest.fixture
def mounts(tmp_path: Path) -> list[Mount]:
    """The hierarchies of a machine with cgroup v1 and an empty cgroup v2 hierarchy."""
    for path in ("memory/app", "systemd/app", "systemd/web", "cpu/web", "cpu/batch", "v2"):
        (tmp_path / path).mkdir(parents=True)
    return [
        Mount(tmp_path, "tmpfs", ("rw",)),
        Mount(tmp_path / "cpu", "cgroup", ("rw", "cpu")),
        Mount(tmp_path / "memory", "cgroup", ("rw", "memory")),
        Mount(tmp_path / "systemd", "cgroup", ("rw", "name=systemd")),
        Mount(tmp_path / "v2", "cgroup2", ("rw",)),
    ]


def code(path: str, mounts: list[Mount]) -> str:
    with pytest.raises(SentinelError) as caught:
        cgroup_folder(path, mounts)
    return caught.value.code


def test_folders_and_paths_in_hierarchies_are_found(mounts: list[Mount], tmp_path: Path) -> None:
    assert cgroup_folder(f"{tmp_path}/memory/app", mounts) == tmp_path / "memory/app"
    assert cgroup_folder(f"{tmp_path}/memory/app/../app/", mounts) == tmp_path / "memory/app"
    assert cgroup_folder("/app", mounts) == tmp_path / "systemd/app"
    assert cgroup_folder("/web", mounts) == tmp_path / "systemd/web"
    assert cgroup_folder("/batch", mounts) == tmp_path / "cpu/batch"
    (tmp_path / "v2/app").mkdir()
    assert cgroup_folder("/app", mounts) == tmp_path / "v2/app"


def test_roots_and_other_paths_are_refused(mounts: list[Mount], tmp_path: Path) -> None:
    assert code("app", mounts) == "usage"
    assert code("", mounts) == "usage"
    assert code("/", mounts) == "not-permitted"
    assert code("/app/..", mounts) == "not-permitted"
    assert code(f"{tmp_path}/memory", mounts) == "not-permitted"
    assert code(f"{tmp_path}/memory/app/../..", mounts) == "no-such-process"
    assert code("/etc", mounts) == "no-such-process"
    assert code("/app", mounts[:1]) == "no-such-process"
    assert code("/../../etc", mounts) == "no-such-process"


def test_a_missing_cgroup_is_refused() -> None:
    with cgroup() as folder, pytest.raises(SentinelError) as caught:
        Cgroup(f"{folder}/missing")
    assert caught.value.code == "no-such-process"


def test_nested_cgroups_take_a_limited_number_of_descriptors(tmp_path: Path) -> None:
    """The cgroup.procs of each folder lists one pid: the folder's level, or 1000 in the outermost
    folder, whose level is 0."""
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"30 1 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    folder = tmp_path / "app"
    for level in range(3 * LEVELS_MAX):
        folder.mkdir()
        (folder / "cgroup.procs").write_text(f"{level or 1000}\n")
        folder = folder / "inner"
    group = Cgroup(str(tmp_path / "app"), mountinfo)
    before = open_descriptors()
    free = [number for number in range(1024) if str(number) not in before]
    with descriptor_limit(free[LEVELS_MAX + 10]):
        assert group.pids(3 * LEVELS_MAX) == [1000, *range(1, LEVELS_MAX + 1)]
    assert open_descriptors() <= before
    group.close()


def test_the_list_of_processes_is_limited() -> None:
    with cgroup() as folder:
        processes = [subprocess.Popen(["/bin/sleep", "1000"]) for _ in range(3)]
        for process in processes:
            join(folder, process.pid)
        group = Cgroup(str(folder))
        assert sorted(group.pids(10)) == sorted(process.pid for process in processes)
        assert len(group.pids(2)) == 2
        assert not group.removed()
        for process in processes:
            process.kill()
            process.wait()
        group.close()
