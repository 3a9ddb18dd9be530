# SPDX-License-Identifier: Apache-2.0
"""Tiers: sets of NUMA nodes of the same speed, fastest first.

If the config names nodes, the config is used. Otherwise, the first of these sources that yields at
least two tiers is used: the kernel's memory tiers, the HMAT attributes of the individual nodes, and
finally CPU-less nodes sorted by NUMA distance. The kernel derives its memory tiers from HMAT and
the drivers' abstract distances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.host import sysfs
from sentineld.model.tiers import Overlap, Tier, Tiers

MIGRATION_BYTES_PER_S = 100e6
"""Default for Tiers.migration_bytes_per_s. The default is deliberately low: a plan that assumes too
little bandwidth moves too little, but a plan that assumes too much makes the training wait for
moves. A guest with emulated CPUs (no KVM) moves 126 MiB/s in batches of 512 pages; real machines
move pages 5 to 20 times as fast.
sentineld.migrate.calibrate measures the actual value."""

_NO_SECOND_TIER_HINT = (
    "restart the daemon if it started before the second tier's memory was online, "
    "name the nodes in the config ([tiers] fast = [0], slow = [1]), "
    "use a file as the slow tier: sentineld --tiers paged:DIRECTORY, "
    "or emulate two tiers: sentineld --tiers emulated:cxl"
)


def discover(sys_root: Path = Path("/sys"), overrides: Mapping[str, object] | None = None) -> Tiers:
    """Discover the machine's tiers.

    overrides: the config's [tiers] table. `fast` and `slow` are lists of node ids; if only one list
        is given, the remaining nodes form the other tier. An empty list counts as not given.
        `migration_bytes_per_s` is a number; 0 selects the default. with_figures() lists the other
        keys.

    Raises SentinelError "no-second-tier" if only one tier is found, or "bad-config" for invalid
    values or for nodes without memory.
    """
    config = dict(overrides or {})
    rate = _rate(config.get("migration_bytes_per_s"))
    nodes = sysfs.memory_nodes(sys_root)
    named = _named_order(nodes, config)
    if named is not None:
        order, source = named, "config"
    else:
        order, source = _found_order(sys_root, nodes)
    if len(order) < 2:
        listed = ", ".join(str(node) for node in nodes) or "none"
        raise SentinelError(
            "no-second-tier",
            f"this machine has only one memory tier (nodes with memory: {listed})",
            _NO_SECOND_TIER_HINT,
        )
    return with_figures(
        Tiers(tuple(_tier(sys_root, group) for group in order), rate, source), config
    )


def with_figures(tiers: Tiers, config: Mapping[str, object]) -> Tiers:
    """The tiers, with their bandwidths, birth time and variant of the timing model replaced by the
    config's values.

    Keys: `fast_read_bytes_per_s`, `fast_write_bytes_per_s`, `slow_read_bytes_per_s`,
    `slow_write_bytes_per_s`, `birth_ns_per_byte`, `overlap` and `moves_yield`. Missing values, and
    figures that are 0, change nothing.

    Raises SentinelError("bad-config") if a variant of the timing model is selected, but a bandwidth
    that the variant needs is unknown.
    """
    found = list(tiers.tiers)
    for at, name in enumerate(("fast", "slow")):
        tier = found[at]
        found[at] = replace(
            tier,
            read_bytes_per_s=_given(config, f"{name}_read_bytes_per_s", tier.read_bytes_per_s),
            write_bytes_per_s=_given(config, f"{name}_write_bytes_per_s", tier.write_bytes_per_s),
        )
    overlap, moves_yield = config.get("overlap"), config.get("moves_yield")
    made = replace(
        tiers,
        tiers=tuple(found),
        birth_ns_per_byte=_given(config, "birth_ns_per_byte", tiers.birth_ns_per_byte),
        overlap=tiers.overlap if overlap is None else Overlap(str(overlap)),
        moves_yield=tiers.moves_yield if moves_yield is None else bool(moves_yield),
    )
    _require_bandwidths(made)
    return made


def _require_bandwidths(tiers: Tiers) -> None:
    """Raise SentinelError if the tiers select a variant of the timing model but lack a bandwidth
    that this variant needs."""
    name = "overlap" if tiers.overlap != Overlap.NONE else "moves_yield"
    if tiers.overlap == Overlap.NONE and not tiers.moves_yield:
        return
    for tier, tier_name in zip(tiers.tiers, ("fast", "slow"), strict=False):
        for way, found in (("read", tier.read_bytes_per_s), ("write", tier.write_bytes_per_s)):
            if found <= 0:
                raise SentinelError(
                    "bad-config",
                    f"tiers.{name} needs the {way} bandwidth of the {tier_name} tier, which is"
                    " unknown",
                    f"run sentinelctl calibrate, or set tiers.{tier_name}_{way}_bytes_per_s",
                )


def _given(config: Mapping[str, object], key: str, found: float) -> float:
    """The config's value if it is a positive number, otherwise `found`."""
    value = config.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else found


def _rate(value: object) -> float:
    if value is None or value == 0:
        return MIGRATION_BYTES_PER_S
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise SentinelError(
            "bad-config",
            f"tiers.migration_bytes_per_s is {value!r}",
            "give a positive number of bytes per second",
        )
    return float(value)


def _node_list(config: Mapping[str, object], key: str) -> tuple[int, ...] | None:
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = tuple(node for node in value if isinstance(node, int))
        if len(numbers) == len(value):
            return numbers or None
    raise SentinelError("bad-config", f"tiers.{key} is {value!r}", "give a list of node ids")


def _named_order(
    nodes: tuple[int, ...], config: Mapping[str, object]
) -> tuple[tuple[int, ...], ...] | None:
    """The tiers' nodes as configured, or None if the config names no nodes."""
    fast = _node_list(config, "fast")
    slow = _node_list(config, "slow")
    if fast is None and slow is None:
        return None
    rest = tuple(node for node in nodes if node not in (fast or ()) and node not in (slow or ()))
    fast = rest if fast is None else fast
    slow = rest if slow is None else slow
    for node in (*fast, *slow):
        if node not in nodes:
            raise SentinelError(
                "bad-config",
                f"node {node} of the configured tiers has no memory",
                f"nodes with memory: {', '.join(str(n) for n in nodes)}",
            )
    if set(fast) & set(slow):
        raise SentinelError(
            "bad-config", "a node is in both tiers.fast and tiers.slow", "list it once"
        )
    return tuple(group for group in (fast, slow) if group)


def _found_order(sys_root: Path, nodes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], ...], str]:
    groups = tuple(
        kept
        for group in sysfs.kernel_tiers(sys_root)
        if (kept := tuple(node for node in group if node in nodes))
    )
    if len(groups) > 1:
        return groups, "sysfs:memory_tiering"
    by_speed = _by_hmat(sys_root, nodes)
    if len(by_speed) > 1:
        return by_speed, "sysfs:hmat"
    return _by_distance(sys_root, nodes), "sysfs:distance"


def _by_hmat(sys_root: Path, nodes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Groups of nodes with the same read latency and read bandwidth: lowest latency first, then
    highest bandwidth first. Empty if a node lacks HMAT attributes."""
    keys: dict[int, tuple[float, float]] = {}
    for node in nodes:
        access = sysfs.node_access(sys_root, node)
        if not access:
            return ()
        keys[node] = (access.get("read_latency", 0.0), -access.get("read_bandwidth", 0.0))
    return tuple(
        tuple(node for node in nodes if keys[node] == key) for key in sorted(set(keys.values()))
    )


def _by_distance(sys_root: Path, nodes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """One tier of all nodes with CPUs, then one tier for each distance of CPU-less nodes from the
    nearest CPU.

    The nodes of several sockets form one tier, because each node is local to the CPUs of its
    socket.
    """
    cpus = sysfs.cpu_nodes(sys_root)
    online = sysfs.online_nodes(sys_root)
    near = tuple(node for node in nodes if node in cpus)
    groups: dict[int, list[int]] = {}
    for node in nodes:
        if node in near:
            continue
        row = dict(zip(online, sysfs.node_distances(sys_root, node), strict=False))
        distance = min((row[cpu] for cpu in cpus if cpu in row), default=0)
        groups.setdefault(distance, []).append(node)
    far = tuple(tuple(groups[distance]) for distance in sorted(groups))
    return (near, *far) if near else far


def _tier(sys_root: Path, nodes: tuple[int, ...]) -> Tier:
    """A tier of these nodes: the sum of their capacities and bandwidths, and the worst latency."""
    access = [sysfs.node_access(sys_root, node) for node in nodes]
    mib = float(1 << 20)
    return Tier(
        nodes=nodes,
        capacity_bytes=sum(sysfs.node_meminfo(sys_root, node).get("MemTotal", 0) for node in nodes),
        read_bytes_per_s=sum(each.get("read_bandwidth", 0.0) for each in access) * mib,
        write_bytes_per_s=sum(each.get("write_bandwidth", 0.0) for each in access) * mib,
        read_latency_ns=max(each.get("read_latency", 0.0) for each in access),
        write_latency_ns=max(each.get("write_latency", 0.0) for each in access),
    )
