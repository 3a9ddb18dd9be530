# SPDX-License-Identifier: Apache-2.0
"""The machine's swap files and devices, according to /proc/swaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.paging import swap

HEAD = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
FILE = "/my\\040disk/swapfile                   file\t\t541004\t\t35792\t\t-2\n"
PARTITION = "/dev/sda2                               partition\t999996\t\t0\t\t-3\n"


@pytest.fixture
def swaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(swap, "SWAPS", tmp_path / "swaps")
    return tmp_path / "swaps"


def test_names_with_spaces(swaps: Path) -> None:
    swaps.write_text(HEAD + FILE + PARTITION)
    assert swap.swap_files() == [Path("/my disk/swapfile"), Path("/dev/sda2")]
    with pytest.raises(RuntimeError, match="/my disk/swapfile, /dev/sda2; run `swapoff -a`"):
        swap.require_no_swap()


def test_a_machine_without_swap(swaps: Path) -> None:
    swaps.write_text(HEAD)
    swap.require_no_swap()
    assert swap.swap_files() == []


def test_a_kernel_without_swap(swaps: Path) -> None:
    assert not swaps.exists()
    swap.require_no_swap()
