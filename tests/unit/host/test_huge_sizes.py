# SPDX-License-Identifier: Apache-2.0
"""Sizes of huge pages, by what sysfs says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.host.huge_sizes import FOLDER, offered_sizes, planned_sizes

KIB = 1 << 10
MODES = ("always", "madvise", "never", "inherit")


def sysfs(root: Path, whole: str, sizes: dict[int, str]) -> Path:
    """Of a kernel with these modes: of huge pages as such, and of each size in KiB."""
    for name, mode in {"": whole, **{f"hugepages-{at}kB": sizes[at] for at in sizes}}.items():
        folder = root / FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        words = " ".join(f"[{one}]" if one == mode else one for one in MODES)
        (folder / "enabled").write_text(words + "\n", encoding="ascii")
    return root


@pytest.mark.parametrize(
    ("whole", "sizes", "offered"),
    [
        ("madvise", {}, [2048]),
        ("never", {}, []),
        ("madvise", {16: "never", 64: "never", 2048: "inherit"}, [2048]),
        ("madvise", {16: "inherit", 64: "madvise", 2048: "inherit"}, [16, 64, 2048]),
        ("never", {64: "always", 2048: "inherit"}, [64]),
        ("always", {64: "inherit", 2048: "never"}, [64]),
    ],
)
def test_a_size_is_offered_by_its_own_word_or_by_that_of_all(
    tmp_path: Path, whole: str, sizes: dict[int, str], offered: list[int]
) -> None:
    assert offered_sizes(sysfs(tmp_path, whole, sizes)) == tuple(at * KIB for at in offered)


def test_a_kernel_without_huge_pages_offers_none(tmp_path: Path) -> None:
    assert offered_sizes(tmp_path) == ()


@pytest.mark.parametrize(
    ("offered", "planned"),
    [([], []), ([2048], [2048]), ([64], [64]), ([16, 64, 2048], [64, 2048])],
)
def test_the_largest_below_the_whole_one_counts(offered: list[int], planned: list[int]) -> None:
    assert planned_sizes(tuple(at * KIB for at in offered)) == tuple(at * KIB for at in planned)
