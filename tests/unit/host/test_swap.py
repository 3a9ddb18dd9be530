# SPDX-License-Identifier: Apache-2.0
"""Swap areas as the kernel lists them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentineld.host.swap import (
    DISK_FAULT_S,
    DISK_FAULT_S_RANGE,
    MEMORY_FAULT_S,
    fault_s,
    read_swap,
)

HEADER = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


def test_the_areas_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "swaps").write_text(
        HEADER
        + "/dev/zram0                              partition\t1048572\t\t24\t\t-2\n"
        + "/a\\040file                              file\t\t2048\t\t1000\t\t-3\n"
    )
    swap = read_swap(tmp_path)
    assert swap == (1050620 << 10, 1024 << 10)
    assert swap.free_bytes == 1049596 << 10


def test_a_machine_without_swap(tmp_path: Path) -> None:
    assert read_swap(tmp_path) == (0, 0)
    (tmp_path / "swaps").write_text(HEADER)
    assert read_swap(tmp_path) == (0, 0)


def device(sys: Path, area: Path, name: str, stat: str) -> None:
    """Make the sysfs folder of the device on which a file lies."""
    number = area.stat().st_dev
    folder = sys / "devices" / name
    folder.mkdir(parents=True)
    (folder / "stat").write_text(stat)
    links = sys / "dev/block"
    links.mkdir(parents=True, exist_ok=True)
    (links / f"{os.major(number)}:{os.minor(number)}").symlink_to(folder)


@pytest.mark.parametrize(
    ("name", "stat", "expected"),
    [
        ("zram0", "9000 0 9000 9000", MEMORY_FAULT_S),
        ("sda1", "1000 20 8000 250 1 2 3", 250e-6),
        ("sda1", "99 20 8000 250 1 2 3", DISK_FAULT_S),
        ("sda1", "1000 20 8000 1 1 2 3", DISK_FAULT_S_RANGE[0]),
        ("sda1", "1000 20 8000 1000000 1 2 3", DISK_FAULT_S_RANGE[1]),
    ],
)
def test_the_time_of_a_fault_is_that_of_the_device(
    tmp_path: Path, name: str, stat: str, expected: float
) -> None:
    area = tmp_path / "a file"
    area.touch()
    path = str(area).replace(" ", "\\040")
    # The second area has a lower priority, so its missing device does not matter.
    (tmp_path / "swaps").write_text(
        f"{HEADER}{path} file 2048 0 5\n/dev/no-such-device partition 2048 0 -2\n"
    )
    device(tmp_path / "sys", area, name, stat)
    assert fault_s(tmp_path, tmp_path / "sys") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "written"),
    [("a\tb", "a\\011b"), ("a\nb", "a\\012b"), ("a\\b", "a\\134b"), ("a\\040b", "a\\134040b")],
)
def test_all_characters_that_the_kernel_escapes_are_decoded(
    tmp_path: Path, name: str, written: str
) -> None:
    area = tmp_path / name
    area.touch()
    (tmp_path / "swaps").write_text(f"{HEADER}{tmp_path}/{written} file 2048 0 5\n")
    device(tmp_path / "sys", area, "zram0", "")
    assert fault_s(tmp_path, tmp_path / "sys") == MEMORY_FAULT_S


def test_the_time_of_a_fault_without_a_known_device(tmp_path: Path) -> None:
    assert fault_s(tmp_path, tmp_path) == DISK_FAULT_S
    (tmp_path / "swaps").write_text(HEADER + "/dev/no-such-device partition 2048 0 5\n")
    assert fault_s(tmp_path, tmp_path) == DISK_FAULT_S
