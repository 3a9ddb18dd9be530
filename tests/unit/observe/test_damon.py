# SPDX-License-Identifier: Apache-2.0
"""The areas that snapshots of DAMON's regions yield, and waits until DAMON is free."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.observe import backends, damon
from sentineld.observe.backend import Areas, Backend, Ranges, Target
from sentineld.observe.damon import (
    DAMON,
    SAMPLING,
    SNAPSHOTS_MAX,
    SNAPSHOTS_MIN,
    DamonWatch,
    Snapshot,
    merge_snapshots,
    parse_snapshot,
)
from sentineld.observe.kdamond import FRAMES, Kdamond, usable
from sentineld.observe.shim_only import SHIM_ONLY
from tests.unit.files import write

MIB = 1 << 20
LOOKS = SAMPLING.looks
REGION = "0/contexts/0/schemes/0/tried_regions/0"
"""The folder of the only region that DAMON reports in the files of kdamonds()."""


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


@pytest.fixture
def kdamonds(tmp_path: Path) -> Path:
    """DAMON's sysfs files, as plain files, while nothing uses DAMON."""
    context = "0/contexts/0"
    for name in (
        *(f"intervals/{one}_us" for one in ("sample", "aggr", "update")),
        "nr_regions/min",
        "nr_regions/max",
    ):
        write(tmp_path, f"{context}/monitoring_attrs/{name}", "0\n")
    for name in ("nr_targets", "0/pid_target", "0/regions/nr_regions"):
        write(tmp_path, f"{context}/targets/{name}", "0\n")
    for name in ("start", "end"):
        write(tmp_path, f"{context}/targets/0/regions/0/{name}", "0\n")
    for name in ("sz/min", "sz/max", "nr_accesses/min", "nr_accesses/max", "age/max"):
        write(tmp_path, f"{context}/schemes/0/access_pattern/{name}", "0\n")
    for name in ("nr_schemes", "0/action"):
        write(tmp_path, f"{context}/schemes/{name}", "0\n")
    write(tmp_path, f"{REGION}/nr_accesses", f"{LOOKS}\n")
    write(tmp_path, f"{context}/operations", "\n")
    write(tmp_path, f"{context}/avail_operations", "vaddr\nfvaddr\npaddr\n")
    write(tmp_path, "0/contexts/nr_contexts", "0\n")
    write(tmp_path, "0/state", "off\n")
    write(tmp_path, "nr_kdamonds", "0\n")
    return tmp_path


@pytest.mark.parametrize("polls", [SNAPSHOTS_MIN, 10_000])
def test_a_window_keeps_snapshots_of_its_whole_length_up_to_a_limit(
    kdamonds: Path, monkeypatch: pytest.MonkeyPatch, polls: int
) -> None:
    merged: list[int] = []

    def merge(snapshots: list[Snapshot], ranges: Ranges) -> Areas:
        merged.append(len(snapshots))
        return merge_snapshots(snapshots, ranges)

    monkeypatch.setattr(damon, "merge_snapshots", merge)
    watch = DamonWatch(Target(os.getpid()), kdamonds)
    watch.begin([(0, 2 * MIB)])
    # In the first half of the window, only memory outside the watched range is accessed. The first
    # MiB of the range is accessed in the third quarter, and the second MiB in the last quarter.
    for begin, share in ((8 * MIB, 2), (0, 4), (MIB, 4)):
        write(kdamonds, f"{REGION}/start", f"{begin}\n")
        write(kdamonds, f"{REGION}/end", f"{begin + MIB}\n")
        for _ in range(polls // share):
            watch.poll()
    areas = watch.end()
    watch.close()
    assert areas["start"].tolist() == [0, MIB]
    assert areas["heat"].tolist() == pytest.approx([0.5, 0.5], abs=2 / SNAPSHOTS_MIN)
    # end() leaves out the first half of the kept snapshots, in which DAMON's regions converge.
    assert SNAPSHOTS_MIN // 2 <= merged[0] <= SNAPSHOTS_MAX // 2


@pytest.fixture
def backend(kdamonds: Path, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """DAMON on these files, which is the best of two backends."""
    found = replace(
        DAMON,
        probe=lambda: usable(kdamonds),
        open=lambda target: DamonWatch(target, kdamonds),
    )
    monkeypatch.setattr(backends, "BACKENDS", (found, SHIM_ONLY))
    return found


def test_a_window_of_policy_temperature_does_not_make_damon_unusable(
    backend: Backend, kdamonds: Path
) -> None:
    window = Kdamond(FRAMES, os.getpid(), kdamonds)
    window.start([(0, 4096)], SAMPLING)
    end = threading.Timer(0.5, window.close)
    try:
        problem = usable(kdamonds, operations=FRAMES)
        statuses = backends.survey()
        end.start()
        chosen, watch = backends.open_best(Target(os.getpid()))
    finally:
        end.join()
    watch.close()
    assert problem is None
    assert [one.problem for one in statuses] == [None, None]
    assert chosen is backend


def test_a_training_does_not_wait_until_another_one_has_been_profiled(backend: Backend) -> None:
    began_s = time.monotonic()
    first, other = (backends.open_best(Target(os.getpid())) for _ in range(2))
    took_s = time.monotonic() - began_s
    for _, watch in (first, other):
        watch.close()
    assert [first[0], other[0]] == [backend, SHIM_ONLY]
    assert took_s < damon.WAIT_S
