# SPDX-License-Identifier: Apache-2.0
"""Huge page sizes that a process may use, from sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.host.huge_sizes import FOLDER, offered_sizes, planned_sizes

KIB = 1 << 10
MODES = ("always", "madvise", "never", "inherit")


def sysfs(root: Path, global_mode: str, sizes: dict[int, str]) -> Path:
    """Fake sysfs with the global mode of huge pages and the mode of each size.

    sizes: modes by size in KiB.
    """
    for name, mode in {"": global_mode, **{f"hugepages-{at}kB": sizes[at] for at in sizes}}.items():
        folder = root / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        choices = " ".join(f"[{one}]" if one == mode else one for one in MODES)
        (folder / "enabled").write_text(choices + "\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("global_mode", "sizes", "offered"),
    [
        ("madvise", {}, [2048]),
        ("never", {}, []),
        ("madvise", {16: "never", 64: "never", 2048: "inherit"}, [2048]),
        ("madvise", {16: "inherit", 64: "madvise", 2048: "inherit"}, [16, 64, 2048]),
        ("never", {64: "always", 2048: "inherit"}, [64]),
        ("always", {64: "inherit", 2048: "never"}, [64]),
    ],
)
def test_a_size_follows_its_own_mode_or_inherits_the_global_one(
    tmp_path: Path, global_mode: str, sizes: dict[int, str], offered: list[int]
) -> None:
    assert offered_sizes(sysfs(tmp_path, global_mode, sizes)) == tuple(at * KIB for at in offered)


def test_a_kernel_without_huge_pages_offers_none(tmp_path: Path) -> None:
    assert offered_sizes(tmp_path) == ()


@pytest.mark.parametrize(
    ("offered", "planned"),
    [([], []), ([2048], [2048]), ([64], [64]), ([16, 64, 2048], [64, 2048])],
)
def test_plans_use_2_mib_and_the_largest_smaller_size(
    offered: list[int], planned: list[int]
) -> None:
    assert planned_sizes(tuple(at * KIB for at in offered)) == tuple(at * KIB for at in planned)
