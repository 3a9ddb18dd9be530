# SPDX-License-Identifier: Apache-2.0
"""Checks of cpusets, memory limits and the number of memory mappings, on fake root folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.doctor import limits
from sentineld.doctor.findings import Status, System
from tests.unit.files import write

GIB = 1 << 30


@pytest.fixture
def system(tmp_path: Path) -> System:
    """Node 0 has 2 GiB, node 1 has 1 GiB. This process is in the cgroup /user.slice/shell.scope."""
    write(tmp_path, "sys/devices/system/node/has_memory", "0-1\n")
    write(tmp_path, "sys/devices/system/node/online", "0-1\n")
    write(tmp_path, "sys/devices/system/node/has_cpu", "0\n")
    write(tmp_path, "sys/devices/system/node/node0/meminfo", f"Node 0 MemTotal: {2 << 20} kB\n")
    write(tmp_path, "sys/devices/system/node/node1/meminfo", f"Node 1 MemTotal: {1 << 20} kB\n")
    write(tmp_path, "sys/devices/system/node/node1/distance", "20 10\n")
    write(tmp_path, "proc/self/status", "Name:\tdoctor\nMems_allowed_list:\t0-1\n")
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/shell.scope\n")
    return System(tmp_path)


def with_session(system: System) -> System:
    """The system with a daemon, pid 7, that manages process 417."""
    tiers = [
        {"nodes": [0], "capacity_bytes": 2 * GIB},
        {"nodes": [1], "capacity_bytes": GIB},
    ]
    return replace(system, daemon={"pid": 7, "sessions": [{"pid": 417}], "tiers": tiers})


def test_no_limits_are_ok(system: System) -> None:
    assert limits.cpuset(system).status is Status.OK
    assert limits.memory_limit(system).status is Status.OK
    assert limits.mappings(system).status is Status.SKIP


def test_a_cpuset_without_the_slow_node_is_reported(system: System) -> None:
    write(system.root, "proc/self/status", "Mems_allowed_list:\t0\n")
    found = limits.cpuset(system)
    assert found.status is Status.WARN
    assert found.cause == "a process started here may only use node 0, not 1"
    assert "cpuset.mems of cgroup user.slice/shell.scope" in found.fix


def test_cpusets_of_the_daemon_and_of_sessions_are_checked(system: System) -> None:
    system = with_session(system)
    write(system.root, "proc/417/status", "Mems_allowed_list:\t1\n")
    assert limits.cpuset(system).cause.startswith("process 417 may only use node 1")
    write(system.root, "proc/7/status", "Mems_allowed_list:\t0\n")
    assert limits.cpuset(system).cause.startswith("the daemon may only use node 0")


@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
@pytest.mark.parametrize("folder", ["user.slice/shell.scope", "user.slice"])
def test_memory_limits_of_all_parent_cgroups_are_checked(
    system: System, name: str, folder: str
) -> None:
    write(system.root, f"sys/fs/cgroup/{folder}/{name}", f"{GIB}\n")
    found = limits.memory_limit(system)
    assert found.status is Status.WARN
    assert f"/sys/fs/cgroup/{folder}/{name} = 1.0 GiB" in found.cause
    assert "3.0 GiB" in found.cause
    write(system.root, f"sys/fs/cgroup/{folder}/{name}", f"{4 * GIB}\n")
    assert limits.memory_limit(system).status is Status.OK
    write(system.root, f"sys/fs/cgroup/{folder}/{name}", "max\n")
    assert limits.memory_limit(system).status is Status.OK


@pytest.mark.parametrize("cgroup", ["/", "/shell.scope"])
def test_the_memory_limit_of_a_container_with_its_own_cgroup_namespace_is_checked(
    system: System, cgroup: str
) -> None:
    write(system.root, "proc/self/cgroup", f"0::{cgroup}\n")
    write(system.root, "sys/fs/cgroup/memory.max", f"{GIB}\n")
    found = limits.memory_limit(system)
    assert found.status is Status.WARN
    assert "a process started here has /sys/fs/cgroup/memory.max = 1.0 GiB" in found.cause


@pytest.mark.parametrize("kind", ["emulated", "paged", "swap"])
@pytest.mark.parametrize("source", ["config", "daemon"])
def test_tiers_that_are_no_nodes_are_not_limited(system: System, kind: str, source: str) -> None:
    selected = {kind: "cxl"}
    write(system.root, "proc/self/status", "Mems_allowed_list:\t0\n")
    write(system.root, "sys/fs/cgroup/user.slice/memory.max", f"{GIB}\n")
    if source == "daemon":
        system = with_session(system)
        assert isinstance(system.daemon, dict)
        system = replace(system, daemon=system.daemon | selected)
    else:
        system = replace(system, tiers=selected)
    assert limits.cpuset(system).status is Status.OK
    assert limits.memory_limit(system).status is Status.OK


def test_the_running_daemons_nodes_are_checked(system: System) -> None:
    tiers = [{"nodes": [1], "capacity_bytes": GIB}, {"nodes": [0], "capacity_bytes": 2 * GIB}]
    write(system.root, "proc/self/status", "Mems_allowed_list:\t0\n")
    system = with_session(replace(system, tiers={"fast": (0,), "slow": ()}))
    assert isinstance(system.daemon, dict)
    found = limits.cpuset(replace(system, daemon=system.daemon | {"tiers": tiers}))
    assert "not 1" in found.cause


def test_a_session_close_to_max_map_count_is_reported(system: System) -> None:
    system = with_session(system)
    write(system.root, "proc/sys/vm/max_map_count", "100\n")
    write(system.root, "proc/417/maps", "a mapping\n" * 81)
    found = limits.mappings(system)
    assert found.status is Status.WARN
    assert found.cause == "process 417 has 81 of 100 mappings; plans need more"
    assert found.fix == "sysctl vm.max_map_count=65530"
    write(system.root, "proc/417/maps", "a mapping\n" * 80)
    assert limits.mappings(system).status is Status.OK
