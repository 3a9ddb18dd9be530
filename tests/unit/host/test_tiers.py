# SPDX-License-Identifier: Apache-2.0
"""Tier discovery on fake sysfs trees, modelled on the sysfs of a virtual machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.tiers import MIGRATION_BYTES_PER_S, discover


@dataclass
class Node:
    mib: int
    cpus: bool
    distance: str
    hmat: tuple[int, int, int, int] | None = None  # read MiB/s, write MiB/s, read ns, write ns


def make_sysfs(root: Path, nodes: dict[int, Node], tiers: dict[int, str] | None = None) -> Path:
    base = root / "devices/system/node"
    base.mkdir(parents=True)

    def listed(ids: list[int]) -> str:
        return ",".join(str(node) for node in ids) + "\n"

    (base / "online").write_text(listed(list(nodes)))
    (base / "has_memory").write_text(listed([i for i, node in nodes.items() if node.mib]))
    (base / "has_cpu").write_text(listed([i for i, node in nodes.items() if node.cpus]))
    for index, node in nodes.items():
        folder = base / f"node{index}"
        folder.mkdir()
        (folder / "meminfo").write_text(
            f"Node {index} MemTotal:       {node.mib * 1024} kB\n"
            f"Node {index} MemFree:        {node.mib * 512} kB\n"
            f"Node {index} HugePages_Total:     3\n"
        )
        (folder / "distance").write_text(node.distance + "\n")
        if node.hmat:
            names = ("read_bandwidth", "write_bandwidth", "read_latency", "write_latency")
            (folder / "access0/initiators").mkdir(parents=True)
            for name, value in zip(names, node.hmat, strict=True):
                (folder / "access0/initiators" / name).write_text(f"{value}\n")
    for number, nodelist in (tiers or {}).items():
        folder = root / f"devices/virtual/memory_tiering/memory_tier{number}"
        folder.mkdir(parents=True)
        (folder / "nodelist").write_text(nodelist + "\n")
    return root


TWO = {0: Node(2048, True, "10 20"), 1: Node(1024, False, "20 10")}


def test_kernel_memory_tiers_are_used_fastest_first(tmp_path: Path) -> None:
    nodes = {
        0: Node(2048, True, "10 20", (30000, 30000, 100, 100)),
        1: Node(1024, False, "20 10", (10000, 5000, 300, 400)),
    }
    found = discover(make_sysfs(tmp_path, nodes, {22: "1", 4: "0"}))
    assert [tier.nodes for tier in found.tiers] == [(0,), (1,)]
    assert found.source == "sysfs:memory_tiering"
    assert found.tiers[0].capacity_bytes == 2048 << 20
    assert found.tiers[1].read_bytes_per_s == 10000 * 2**20
    assert found.tiers[1].write_bytes_per_s == 5000 * 2**20
    assert (found.tiers[1].read_latency_ns, found.tiers[1].write_latency_ns) == (300, 400)
    assert found.migration_bytes_per_s == MIGRATION_BYTES_PER_S


def test_three_kernel_memory_tiers_are_kept(tmp_path: Path) -> None:
    nodes = {
        0: Node(2048, True, "10 20 30"),
        1: Node(1024, False, "20 10 30"),
        2: Node(1024, False, "30 30 10"),
    }
    found = discover(make_sysfs(tmp_path, nodes, {4: "0", 196: "2", 28: "1"}))
    assert [tier.nodes for tier in found.tiers] == [(0,), (1,), (2,)]


def test_hmat_separates_tiers_that_the_kernel_merges(tmp_path: Path) -> None:
    nodes = {
        0: Node(1024, False, "10 10", (10000, 10000, 300, 300)),
        1: Node(2048, True, "10 10", (30000, 30000, 100, 100)),
    }
    found = discover(make_sysfs(tmp_path, nodes, {4: "0-1"}))
    assert [tier.nodes for tier in found.tiers] == [(1,), (0,)]
    assert found.source == "sysfs:hmat"


def test_distance_and_missing_cpus_identify_the_slow_node(tmp_path: Path) -> None:
    found = discover(make_sysfs(tmp_path, TWO))
    assert [tier.nodes for tier in found.tiers] == [(0,), (1,)]
    assert found.source == "sysfs:distance"


def test_sockets_form_one_tier_and_cpuless_nodes_the_next(tmp_path: Path) -> None:
    nodes = {
        0: Node(1024, True, "10 21 17 28"),
        1: Node(1024, True, "21 10 28 17"),
        2: Node(4096, False, "17 28 10 28"),
        3: Node(4096, False, "28 17 28 10"),
    }
    found = discover(make_sysfs(tmp_path, nodes))
    assert [tier.nodes for tier in found.tiers] == [(0, 1), (2, 3)]
    assert found.tiers[1].capacity_bytes == 8192 << 20


def test_a_single_node_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(SentinelError) as caught:
        discover(make_sysfs(tmp_path, {0: Node(2048, True, "10")}, {4: "0"}))
    assert caught.value.code == "no-second-tier"
    assert "fast = [0]" in caught.value.hint
    assert "restart the daemon" in caught.value.hint  # memory can come online later


def test_sockets_without_slow_memory_are_refused(tmp_path: Path) -> None:
    nodes = {0: Node(1024, True, "10 21"), 1: Node(1024, True, "21 10")}
    with pytest.raises(SentinelError, match="only one memory tier"):
        discover(make_sysfs(tmp_path, nodes))


def test_config_overrides_the_kernels_tiers(tmp_path: Path) -> None:
    root = make_sysfs(tmp_path, TWO, {4: "0", 22: "1"})
    found = discover(root, {"fast": [1], "migration_bytes_per_s": 5e8})
    assert [tier.nodes for tier in found.tiers] == [(1,), (0,)]
    assert found.source == "config"
    assert found.migration_bytes_per_s == 5e8


def test_empty_overrides_change_nothing(tmp_path: Path) -> None:
    found = discover(
        make_sysfs(tmp_path, TWO), {"fast": (), "slow": (), "migration_bytes_per_s": 0}
    )
    assert found == discover(tmp_path)


@pytest.mark.parametrize(
    "overrides",
    [
        {"fast": [0], "slow": [9]},
        {"fast": "0"},
        {"fast": [0], "slow": [0]},
        {"migration_bytes_per_s": -1},
        {"fast": ["0"]},
    ],
)
def test_invalid_overrides_are_refused(tmp_path: Path, overrides: dict[str, object]) -> None:
    with pytest.raises(SentinelError) as caught:
        discover(make_sysfs(tmp_path, TWO), overrides)
    assert caught.value.code == "bad-config"


def test_own_bandwidths_go_before_the_firmware_s(tmp_path: Path) -> None:
    nodes = {
        0: Node(2048, True, "10 20", (30000, 30000, 100, 100)),
        1: Node(1024, False, "20 10", (9000, 8000, 300, 300)),
    }
    tiers = discover(
        make_sysfs(tmp_path, nodes), {"slow_read_bytes_per_s": 7e9, "fast_write_bytes_per_s": 0.0}
    )
    fast, slow = tiers.tiers
    assert slow.read_bytes_per_s == 7e9
    assert slow.write_bytes_per_s == 8000 * (1 << 20)
    assert fast.write_bytes_per_s == 30000 * (1 << 20)


@pytest.mark.parametrize("variant", [{"overlap": "tiers"}, {"moves_yield": True}])
def test_a_variant_of_the_timing_model_needs_all_bandwidths(
    tmp_path: Path, variant: dict[str, object]
) -> None:
    root = make_sysfs(tmp_path, TWO)
    rates = {
        f"{tier}_{way}_bytes_per_s": 1e9 for tier in ("fast", "slow") for way in ("read", "write")
    }
    found = discover(root, rates | variant)
    assert found.overlap == variant.get("overlap", "none")
    assert found.moves_yield == variant.get("moves_yield", False)
    (name,) = variant
    for missing in rates:
        with pytest.raises(SentinelError, match=rf"tiers\.{name} needs the") as caught:
            discover(root, rates | {missing: 0.0} | variant)
        assert caught.value.code == "bad-config"
        assert f"tiers.{missing}" in caught.value.hint


def result(root: Path) -> str:
    """The result of discover(): "two tiers", "other tiers" or the code of its error."""
    try:
        return "two tiers" if len(discover(root).tiers) == 2 else "other tiers"
    except SentinelError as error:
        return error.code


def test_any_file_of_sysfs_may_be_unreadable(tmp_path: Path) -> None:
    """The test replaces each file in turn with a folder, which cannot be read as a file."""
    nodes = {
        0: Node(2048, True, "10 20", (30000, 30000, 100, 100)),
        1: Node(1024, False, "20 10", (10000, 5000, 300, 400)),
    }
    root = make_sysfs(tmp_path, nodes, {22: "1", 4: "0"})
    files = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) == 17
    for file in files:
        text = file.read_text()
        file.unlink()
        file.mkdir()
        assert result(root) in ("two tiers", "no-second-tier"), file
        file.rmdir()
        file.write_text(text)


def test_without_sysfs_there_is_no_second_tier(tmp_path: Path) -> None:
    with pytest.raises(SentinelError) as refused:
        discover(tmp_path)
    assert refused.value.code == "no-second-tier"
