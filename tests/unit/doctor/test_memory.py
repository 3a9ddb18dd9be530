# SPDX-License-Identifier: Apache-2.0
"""Checks of tiers and of the kernel's memory management, on a made-up root folder."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.doctor import memory
from sentineld.doctor.findings import Status, System
from tests.unit.files import write


def test_one_node_is_no_second_tier(system: System) -> None:
    write(system.root, "sys/devices/system/node/has_memory", "0\n")
    found = memory.tiers(system)
    assert (found.status, found.code) == (Status.FAIL, "no-second-tier")
    assert "--tiers emulated:cxl" in found.fix
    found = memory.tiers(replace(system, tiers={"emulated": "optane"}))
    assert found.status is Status.OK
    assert "emulated (preset optane)" in found.cause


STATUS = {
    "tiers": [],
    "tiers_source": "",
    "emulated": "",
    "paged": "",
    "swap": False,
    "problems": ["/data: Permission denied (let the daemon write there)"],
}


def test_the_running_daemons_tiers_are_reported(system: System) -> None:
    write(system.root, "sys/devices/system/node/has_memory", "0\n")
    found = memory.tiers(replace(system, tiers={"paged": "/data"}, daemon=STATUS))
    assert (found.status, found.cause) == (Status.FAIL, STATUS["problems"][0])
    nodes = [
        {"nodes": [0, 1], "capacity_bytes": 1 << 30},
        {"nodes": [2], "capacity_bytes": 2 << 30},
    ]
    answer = STATUS | {"tiers": nodes, "problems": []}
    found = memory.tiers(replace(system, daemon=answer | {"tiers_source": "config"}))
    assert found.status is Status.OK
    assert found.cause == "node 0+1 (1.0 GiB), node 2 (2.0 GiB); from config"
    found = memory.tiers(replace(system, daemon=answer | {"emulated": "cxl"}))
    assert found.cause == "emulated (preset cxl), in the running daemon"
    found = memory.tiers(replace(system, daemon=answer | {"paged": "/mnt"}))
    assert found.cause == "paged: files in /mnt are tier 1, in the running daemon"
    # If swap is the slow tier, the daemon reports no nodes for the tiers.
    no_nodes = [{"nodes": [], "capacity_bytes": 1 << 30}] * 2
    found = memory.tiers(replace(system, daemon=answer | {"tiers": no_nodes, "swap": True}))
    assert found.cause == "the kernel's swap is tier 1, in the running daemon"


def test_swap_as_the_slow_tier(system: System) -> None:
    system = replace(system, tiers={"swap": True})
    found = memory.tiers(system)
    assert (found.status, found.code) == (Status.FAIL, "no-second-tier")
    write(system.root, "proc/swaps", "Filename Type\n/dev/zram0 partition")
    assert memory.tiers(system).status is Status.OK
    assert memory.swap(system).status is Status.SKIP


@pytest.mark.parametrize(
    ("check", "path", "good", "bad", "fix"),
    [
        ("numa_balancing", "proc/sys/kernel/numa_balancing", "0", "2", "numa_balancing=0"),
        ("demotion", "sys/kernel/mm/numa/demotion_enabled", "false", "true", "echo false"),
        ("max_map_count", "proc/sys/vm/max_map_count", "65530", "1000", "max_map_count=65530"),
        ("swap", "proc/swaps", "Filename Type", "Filename Type\n/dev/vdb partition", "swapoff"),
    ],
)
def test_policies_that_get_in_the_way(
    system: System, check: str, path: str, good: str, bad: str, fix: str
) -> None:
    write(system.root, path, good)
    assert getattr(memory, check)(system).status is Status.OK
    write(system.root, path, bad)
    found = getattr(memory, check)(system)
    assert found.status is Status.WARN
    assert fix in found.fix


def test_huge_page_mode_is_named(system: System) -> None:
    file = "sys/kernel/mm/transparent_hugepage/enabled"
    write(system.root, file, "[always] madvise never\n")
    assert memory.huge_pages(system).cause.startswith("always;")
    assert memory.huge_pages(system).cause.endswith("except where a plan uses huge pages")
    write(system.root, file, "always madvise [never]\n")
    assert memory.huge_pages(system).cause == "never; tensor memory uses small pages"


def test_free_memory_that_a_hypervisor_takes_back(system: System) -> None:
    assert memory.free_memory(system).status is Status.OK
    features = "sys/bus/virtio/drivers/virtio_balloon/virtio0/features"
    fraction = "proc/sys/vm/percpu_pagelist_high_fraction"
    write(system.root, fraction, "0\n")
    write(system.root, features, "01100" + 123 * "0" + "\n")
    assert memory.free_memory(system).status is Status.OK
    write(system.root, features, "011001" + 122 * "0" + "\n")
    found = memory.free_memory(system)
    assert found.status is Status.WARN
    assert found.fix == "sysctl vm.percpu_pagelist_high_fraction=8"
    write(system.root, fraction, "8\n")
    assert memory.free_memory(system).status is Status.OK


def test_who_sets_numa_balancing(system: System) -> None:
    write(system.root, "proc/sys/kernel/numa_balancing", "1\n")
    assert memory.numa_balancing(system).fix == "sysctl kernel.numa_balancing=0"
    write(system.root, "usr/lib/sysctl.d/50-tiering.conf", "# x\nkernel.numa_balancing = 1\n")
    assert "set by /usr/lib/sysctl.d/50-tiering.conf" in memory.numa_balancing(system).cause
    write(system.root, "etc/sysctl.d/60-mine.conf", "-kernel/numa_balancing=1\n")
    assert "set by /etc/sysctl.d/60-mine.conf" in memory.numa_balancing(system).cause
    # A file in /etc replaces the file of the same name in /usr/lib, even if it does not contain the
    # same settings.
    write(system.root, "etc/sysctl.d/50-tiering.conf", "vm.swappiness = 1\n")
    (system.root / "etc/sysctl.d/60-mine.conf").unlink()
    assert "set by" not in memory.numa_balancing(system).cause
    write(system.root, "etc/tuned/active_profile", "throughput\n")
    write(system.root, "usr/lib/tuned/throughput/tuned.conf", "[sysctl]\nkernel.numa_balancing=1\n")
    found = memory.numa_balancing(system)
    assert "set by the tuned profile throughput" in found.cause
    assert "change it there" in found.fix
