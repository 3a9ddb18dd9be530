# SPDX-License-Identifier: Apache-2.0
"""Checks of per-process limits: nodes, memory, mappings.

Each check examines some of these processes: this process (a training started from the same shell
has the same limits), the daemon, and the sessions that the caller may see.
"""

from __future__ import annotations

import re

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.doctor.findings import Finding, Status, System, TierKind
from sentineld.doctor.memory import DEFAULT_MAX_MAP_COUNT
from sentineld.host.cgroup_paths import cgroup_paths
from sentineld.host.sysfs import parse_list
from sentineld.host.tiers import discover

HERE = "here"
DAEMON = "the daemon"
MAPPINGS_SHARE_MAX = 0.8


def cpuset(system: System) -> Finding:
    """Whether each process may use all nodes of the tiers. The kernel refuses to move the pages of
    a process to a node that the process may not use."""
    nodes = sorted(node for nodes, _ in _tiers(system) for node in nodes)
    for name, process in _processes(system).items():
        found = re.search(
            r"^Mems_allowed_list:\s*(\S+)$", system.text(f"proc/{process}/status") or "", re.M
        )
        missing = [str(node) for node in nodes if found and node not in parse_list(found[1])]
        if found and missing:
            return Finding(
                "cpuset",
                Status.WARN,
                f"{_subject(name)} may only use node {found[1]}, not {','.join(missing)}",
                f"widen cpuset.mems of cgroup {_cgroup(system, process) or '/'}, "
                "or AllowedMemoryNodes= of its unit",
            )
    return Finding("cpuset", Status.OK, "the nodes of all tiers are allowed")


def memory_limit(system: System) -> Finding:
    """Whether a cgroup's memory limit is below the tiers' size.

    The limit applies to the sum of all tiers, so reclaim may start while a tier has free memory.
    """
    capacity = sum(capacity_bytes for _, capacity_bytes in _tiers(system))
    for name, process in _processes(system).items():
        if name == DAEMON:
            continue  # the daemon holds no tensors
        limit = _limit(system, _cgroup(system, process))
        if limit is not None and limit[0] < capacity:
            return Finding(
                "memory_limit",
                Status.WARN,
                f"{_subject(name)} has {limit[1]} = {format_bytes(limit[0])}, less than the tiers' "
                f"{format_bytes(capacity)}: above it, pages are reclaimed even if a tier has room",
                f"raise {limit[1]}, for example: systemctl set-property UNIT MemoryMax=infinity",
            )
    return Finding("memory_limit", Status.OK, "no cgroup limit is below the tiers' size")


def mappings(system: System) -> Finding:
    """Whether sessions can create more mappings. They need many, because each range with a memory
    policy is a mapping of its own."""
    most = int(system.text("proc/sys/vm/max_map_count") or DEFAULT_MAX_MAP_COUNT)
    counts = {
        name: len(list(filter(None, (system.text(f"proc/{process}/maps") or "").split("\n"))))
        for name, process in _processes(system).items()
        if name not in (HERE, DAEMON)
    }
    for name, count in counts.items():
        if count > most * MAPPINGS_SHARE_MAX:
            return Finding(
                "mappings",
                Status.WARN,
                f"{name} has {count} of {most} mappings; plans need more",
                f"sysctl vm.max_map_count={max(4 * most, DEFAULT_MAX_MAP_COUNT)}",
            )
    if not counts:
        return Finding("mappings", Status.SKIP, "no sessions")
    return Finding(
        "mappings", Status.OK, f"at most {max(counts.values())} of {most} mappings are in use"
    )


def _subject(name: str) -> str:
    return "a process started here" if name == HERE else name


def _processes(system: System) -> dict[str, str]:
    """The processes to examine: the directory in /proc of each, by the name used in messages."""
    found = {HERE: "self"}
    answer = system.daemon
    if isinstance(answer, SentinelError):
        return found
    found[DAEMON] = str(answer["pid"])
    for session in answer["sessions"]:
        found[f"process {session['pid']}"] = str(session["pid"])
    return found


def _tiers(system: System) -> list[tuple[tuple[int, ...], int]]:
    """(nodes, capacity in bytes) of each tier, if the tiers are NUMA nodes. Empty if the tiers are
    of another kind, or if there are none."""
    if system.tier_kind is not TierKind.NODES:
        return []
    if not isinstance(system.daemon, SentinelError):
        return [(tuple(one["nodes"]), one["capacity_bytes"]) for one in system.daemon["tiers"]]
    try:
        tiers = discover(system.root / "sys", system.tiers).tiers
    except SentinelError:
        return []
    return [(tier.nodes, tier.capacity_bytes) for tier in tiers]


def _cgroup(system: System, process: str) -> str | None:
    """The path of a process's cgroup (v2); "" for the root cgroup, None if unknown."""
    path = cgroup_paths(system.text(f"proc/{process}/cgroup") or "").get("")
    return None if path is None else path.removeprefix("/")


def _limit(system: System, cgroup: str | None) -> tuple[int, str] | None:
    """(limit in bytes, file) of the smallest memory.max or memory.high of the cgroup and its
    ancestors; None if there is no limit or the cgroup is unknown.

    The machine's root cgroup has no limit, but that of a cgroup namespace (a container) may have
    one."""
    if cgroup is None:
        return None
    limits = []
    parts = cgroup.split("/") if cgroup else []
    for depth in range(len(parts), -1, -1):
        folder = "/".join(["sys/fs/cgroup", *parts[:depth]])
        for name in ("memory.max", "memory.high"):
            text = system.text(f"{folder}/{name}")
            if text and text.isdigit():
                limits.append((int(text), f"/{folder}/{name}"))
    return min(limits, default=None)
