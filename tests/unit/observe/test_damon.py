# SPDX-License-Identifier: Apache-2.0
"""The areas that snapshots of DAMON's regions yield."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.observe.damon import SAMPLING, Snapshot, merge_snapshots, parse_snapshot
from tests.unit.files import write

MIB = 1 << 20
LOOKS = SAMPLING.looks


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
