# SPDX-License-Identifier: Apache-2.0
"""Lists, memory and distances of nodes, read from made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.host import sysfs
from tests.unit.files import write


def test_lists_and_watermarks(tmp_path: Path) -> None:
    assert sysfs.parse_list("0-2,5\n") == (0, 1, 2, 5)
    assert sysfs.parse_list("\n") == ()
    (tmp_path / "zoneinfo").write_text(
        "Node 0, zone      DMA\n  pages free     3\n        high     10\n"
        "    pagesets\n    cpu: 0\n              high:  378\n"
        "Node 0, zone   Normal\n        high     90\n"
        "Node 1, zone   Normal\n        high     1000\n"
    )
    assert sysfs.high_watermark_bytes(tmp_path, 0) == 100 * 4096
    assert sysfs.high_watermark_bytes(tmp_path, 1) == 1000 * 4096


def as_list(numbers: set[int]) -> str:
    """These numbers in the kernel's list format, with ranges."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


@given(st.sets(st.integers(0, 200)))
def test_a_list_as_the_kernel_writes_it_is_read_back(numbers: set[int]) -> None:
    assert sysfs.parse_list(as_list(numbers) + "\n") == tuple(sorted(numbers))


@pytest.mark.parametrize("text", ["a", "-1", "0-2-4", "0;1"])
def test_other_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        sysfs.parse_list(text)


@pytest.mark.parametrize(
    ("text", "setting"),
    [("always [madvise] never", "madvise"), ("[always] never", "always"), ("1", ""), ("", "")],
)
def test_the_setting_in_brackets_is_the_chosen_one(text: str, setting: str) -> None:
    assert sysfs.chosen(text) == setting


def test_memory_of_a_node_is_in_bytes_except_counts_of_huge_pages(tmp_path: Path) -> None:
    write(
        tmp_path,
        "devices/system/node/node1/meminfo",
        "Node 1 MemTotal:       2048 kB\nNode 1 Inactive(file):    8 kB\n"
        "Node 1 HugePages_Total:     3\n",
    )
    assert sysfs.node_meminfo(tmp_path, 1) == {
        "MemTotal": 2048 << 10,
        "Inactive(file)": 8 << 10,
        "HugePages_Total": 3,
    }
    assert sysfs.node_meminfo(tmp_path, 2) == {}


def test_nodes_and_their_distances(tmp_path: Path) -> None:
    node = "devices/system/node"
    write(tmp_path, f"{node}/has_memory", "0-1\n")
    write(tmp_path, f"{node}/has_cpu", "0\n")
    write(tmp_path, f"{node}/online", "0-2\n")
    write(tmp_path, f"{node}/node1/distance", "17 10 21\n")
    assert sysfs.memory_nodes(tmp_path) == (0, 1)
    assert sysfs.cpu_nodes(tmp_path) == (0,)
    assert sysfs.online_nodes(tmp_path) == (0, 1, 2)
    assert sysfs.node_distances(tmp_path, 1) == (17, 10, 21)


def test_a_kernel_without_numa_has_no_nodes(tmp_path: Path) -> None:
    assert sysfs.memory_nodes(tmp_path) == ()
    assert sysfs.cpu_nodes(tmp_path) == ()
    assert sysfs.online_nodes(tmp_path) == ()
    assert sysfs.node_distances(tmp_path, 0) == ()
    assert sysfs.kernel_tiers(tmp_path) == ()
    assert sysfs.high_watermark_bytes(tmp_path, 0) == 0


def test_the_first_initiator_class_with_figures_is_read(tmp_path: Path) -> None:
    node = "devices/system/node/node0"
    write(tmp_path, f"{node}/access0/initiators/read_bandwidth", "0\n")
    assert sysfs.node_access(tmp_path, 0) == {}
    write(tmp_path, f"{node}/access1/initiators/read_bandwidth", "900\n")
    write(tmp_path, f"{node}/access1/initiators/read_latency", "unknown\n")
    assert sysfs.node_access(tmp_path, 0) == {"read_bandwidth": 900.0}
    write(tmp_path, f"{node}/access0/initiators/write_latency", "80\n")
    assert sysfs.node_access(tmp_path, 0) == {"write_latency": 80.0}


def test_the_kernels_tiers_are_ordered_by_their_distance(tmp_path: Path) -> None:
    tiers = "devices/virtual/memory_tiering"
    write(tmp_path, f"{tiers}/memory_tier22/nodelist", "2\n")
    write(tmp_path, f"{tiers}/memory_tier4/nodelist", "0-1\n")
    write(tmp_path, f"{tiers}/memory_tier100/nodelist", "\n")
    write(tmp_path, f"{tiers}/memory_tiers/nodelist", "7\n")
    assert sysfs.kernel_tiers(tmp_path) == ((0, 1), (2,))


def test_this_machines_own_files_are_read() -> None:
    for node in sysfs.memory_nodes(Path("/sys")):
        assert sysfs.node_meminfo(Path("/sys"), node)["MemTotal"] > 0
