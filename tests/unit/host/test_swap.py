# SPDX-License-Identifier: Apache-2.0
"""Swap areas as the kernel lists them."""

from __future__ import annotations

from pathlib import Path

from sentineld.host.swap import read_swap

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
