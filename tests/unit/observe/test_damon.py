# SPDX-License-Identifier: Apache-2.0
"""DAMON's sysfs files as recorded in a guest, and the areas that snapshots of its regions yield."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe.backend import Target
from sentineld.observe.damon import (
    LOOKS,
    DamonWatch,
    Snapshot,
    merge_snapshots,
    parse_snapshot,
    usable,
)

MIB = 1 << 20


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def kdamonds(tmp_path: Path) -> Path:
    """DAMON's sysfs files while nothing uses DAMON."""
    write(tmp_path, "nr_kdamonds", "0\n")
    return tmp_path


def test_a_kernel_without_damon(tmp_path: Path) -> None:
    problem = usable(tmp_path / "none")
    assert problem is not None
    assert "CONFIG_DAMON_SYSFS" in problem.hint


def test_unused_damon_is_usable(kdamonds: Path) -> None:
    assert usable(kdamonds) is None


def test_damon_without_operations_for_processes(kdamonds: Path) -> None:
    """The kernel has CONFIG_DAMON_SYSFS, but not CONFIG_DAMON_VADDR."""
    write(kdamonds, "0/contexts/nr_contexts", "0\n")
    write(kdamonds, "0/contexts/0/avail_operations", "paddr\n")
    problem = usable(kdamonds)
    assert problem is not None
    assert "CONFIG_DAMON_VADDR" in problem.hint
    assert (kdamonds / "nr_kdamonds").read_text() == "0\n"
    with pytest.raises(SentinelError, match="does not support"):
        DamonWatch(Target(418), kdamonds)
    # damon.py caches this error. A traceback in the cached object would keep the session's
    # variables alive.
    assert problem.__traceback__ is None


def test_damon_is_not_usable_while_the_kernel_uses_it(kdamonds: Path, tmp_path: Path) -> None:
    modules = tmp_path / "module"
    write(modules, "damon_stat/parameters/enabled", "Y\n")
    problem = usable(kdamonds, modules=modules)
    assert problem is not None
    assert "DAMON_STAT" in problem.message
    assert str(modules / "damon_stat/parameters/enabled") in problem.hint
    write(modules, "damon_stat/parameters/enabled", "N\n")
    assert usable(kdamonds, modules=modules) is None


def test_a_stopped_kdamond_is_usable(kdamonds: Path) -> None:
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "off\n")
    assert usable(kdamonds) is None


def test_another_program_s_kdamond_is_left_unchanged(kdamonds: Path) -> None:
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "on\n")
    write(kdamonds, "0/contexts/0/targets/0/pid_target", "417\n")
    problem = usable(kdamonds)
    assert problem is not None
    assert "417" in problem.message
    with pytest.raises(SentinelError, match="417"):
        DamonWatch(Target(418), kdamonds)
    assert (kdamonds / "nr_kdamonds").read_text() == "1\n"
    assert (kdamonds / "0/state").read_text() == "on\n"


def test_a_kdamond_that_a_dead_daemon_left_on_the_process_is_taken_over(kdamonds: Path) -> None:
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "on\n")
    write(kdamonds, "0/contexts/0/targets/0/pid_target", "417\n")
    assert usable(kdamonds, pid=417) is None


def test_snapshot(tmp_path: Path) -> None:
    for index, (start, end, count) in enumerate([(8192, 16384, 3), (4096, 8192, 20)]):
        write(tmp_path, f"{index}/start", f"{start}\n")
        write(tmp_path, f"{index}/end", f"{end}\n")
        write(tmp_path, f"{index}/nr_accesses", f"{count}\n")
        write(tmp_path, f"{index}/age", "7\n")
    write(tmp_path, "total_bytes", "12288\n")
    write(tmp_path, "2/start", "99\n")  # a region that disappears during the read
    assert parse_snapshot(tmp_path).regions == ((4096, 8192, 20), (8192, 16384, 3))


def test_heat_is_the_mean_over_the_snapshots() -> None:
    hot = (0, 4 * MIB, LOOKS)
    areas = merge_snapshots(
        [
            Snapshot((hot, (4 * MIB, 8 * MIB, LOOKS // 2))),
            Snapshot((hot,)),
        ],
        [(0, 8 * MIB)],
    )
    assert areas["start"].tolist() == [0, 4 * MIB]
    assert areas["bytes"].tolist() == [4 * MIB, 4 * MIB]
    assert areas["heat"].tolist() == pytest.approx([1.0, 0.25])


def test_areas_are_clipped_to_the_ranges() -> None:
    areas = merge_snapshots(
        [Snapshot(((0, 10 * MIB, LOOKS), (20 * MIB, 30 * MIB, 1)))] + [Snapshot(())] * 9,
        [(2 * MIB, 2 * MIB), (6 * MIB, MIB), (20 * MIB, 5 * MIB), (40 * MIB, MIB)],
    )
    assert areas["start"].tolist() == [2 * MIB, 6 * MIB, 20 * MIB]
    assert areas["bytes"].tolist() == [2 * MIB, MIB, 5 * MIB]
    assert areas["heat"].tolist() == pytest.approx([0.1, 0.1, 1 / LOOKS / 10])


def test_without_snapshots_there_are_no_areas() -> None:
    assert len(merge_snapshots([], [(0, MIB)])) == 0
