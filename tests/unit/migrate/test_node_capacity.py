# SPDX-License-Identifier: Apache-2.0
"""The room that nodes have for moved pages, according to made-up kernel files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentineld.migrate.node_capacity import FRESH_NS, ROOMY_BYTES, Capacity
from sentineld.model.tiers import Tier, Tiers

KIB = 1 << 10
TIERS = Tiers((Tier((0,), 0), Tier((1, 2), 0)), 0.0, "toy")


class Machine:
    """A made-up /sys with the nodes' files, and a made-up /proc."""

    def __init__(self, folder: Path) -> None:
        self.sys_root, self.proc_root = folder / "sys", folder / "proc"
        self.proc_root.mkdir()
        self.now_ns = FRESH_NS

    def node(self, node: int, free_kib: int, cache_kib: int = 0) -> None:
        folder = self.sys_root / f"devices/system/node/node{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "meminfo").write_text(
            f"Node {node} MemTotal: 999999 kB\nNode {node} MemFree: {free_kib} kB\n"
            f"Node {node} Active(file): 512 kB\nNode {node} Inactive(file): {cache_kib} kB\n"
        )

    def watermarks(self, **pages: int) -> None:
        (self.proc_root / "zoneinfo").write_text(
            "".join(
                f"Node {name.removeprefix('node')}, zone   Normal\n        high     {count}\n"
                for name, count in pages.items()
            )
        )

    def capacity(self) -> Capacity:
        return Capacity(TIERS, self.sys_root, self.proc_root, lambda: self.now_ns)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_room_is_free_memory_and_cold_cache_above_the_watermark(machine: Machine) -> None:
    machine.node(0, free_kib=1000, cache_kib=200)
    machine.watermarks(node0=25, node1=9)
    assert machine.capacity().node_bytes(0) == (1000 + 200 - 100) * KIB


def test_room_is_never_negative(machine: Machine) -> None:
    machine.node(0, free_kib=10)
    machine.watermarks(node0=1000)
    assert machine.capacity().node_bytes(0) == 0


def test_a_node_that_is_not_there_has_no_room(machine: Machine) -> None:
    assert machine.capacity().node_bytes(7) == 0


def test_the_node_with_the_most_room_is_best(machine: Machine) -> None:
    machine.node(0, 10)
    machine.node(1, 100)
    machine.node(2, 300)
    capacity = machine.capacity()
    assert capacity.best_node(0) == (0, 10 * KIB)
    assert capacity.best_node(1) == (2, 300 * KIB)
    machine.node(2, 50)  # a node with little room is read again each time
    assert capacity.best_node(1) == (1, 100 * KIB)


def test_of_equal_nodes_the_first_is_best(machine: Machine) -> None:
    machine.node(1, 100)
    machine.node(2, 100)
    assert machine.capacity().best_node(1) == (1, 100 * KIB)


def test_a_roomy_node_is_read_again_after_a_while(machine: Machine) -> None:
    roomy_kib = ROOMY_BYTES // KIB
    machine.node(0, 2 * roomy_kib)
    capacity = machine.capacity()
    assert capacity.best_node(0) == (0, 2 * ROOMY_BYTES)
    machine.node(0, 10)
    machine.now_ns += FRESH_NS - 1
    assert capacity.best_node(0) == (0, 2 * ROOMY_BYTES)
    machine.now_ns += 1
    assert capacity.best_node(0) == (0, 10 * KIB)


def test_a_node_is_read_again_after_a_failed_move(machine: Machine) -> None:
    machine.node(0, 2 * ROOMY_BYTES // KIB)
    capacity = machine.capacity()
    capacity.forget(0)
    assert capacity.best_node(0) == (0, 2 * ROOMY_BYTES)
    machine.node(0, 10)
    capacity.forget(0)
    assert capacity.best_node(0) == (0, 10 * KIB)


def test_moves_reduce_the_room_until_the_node_is_read_again(machine: Machine) -> None:
    roomy_kib = ROOMY_BYTES // KIB
    machine.node(0, 2 * roomy_kib)
    capacity = machine.capacity()
    capacity.moved(0, KIB)  # has no effect, because the node has not been read yet
    assert capacity.best_node(0) == (0, 2 * ROOMY_BYTES)
    capacity.moved(0, ROOMY_BYTES)
    assert capacity.best_node(0) == (0, ROOMY_BYTES)
    capacity.moved(0, KIB)
    machine.node(0, 3 * roomy_kib)
    assert capacity.best_node(0) == (0, 3 * ROOMY_BYTES)
