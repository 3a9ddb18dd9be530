# SPDX-License-Identifier: Apache-2.0
"""Reads properties of NUMA nodes from sysfs and procfs.

These functions take the root directory of sysfs or procfs, so that tests can pass a copy of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from sentineld.base.proc_text import read_proc_text

_MEMINFO = re.compile(r"^Node\s+\d+\s+(\S+):\s+(\d+)(?:\s+kB)?", re.MULTILINE)


def parse_list(text: str) -> tuple[int, ...]:
    """Parse the kernel's list format: "0-2,5" -> (0, 1, 2, 5), "" -> ().

    Empty parts are ignored. Raises ValueError if a part is neither a number nor a
    range of numbers.
    """
    numbers: list[int] = []
    for part in text.strip().split(","):
        if not part:
            continue
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def read_text(path: Path) -> str | None:
    """The file's stripped text, or None if it does not exist or cannot be read."""
    try:
        return read_proc_text(path).strip()
    except OSError:
        return None


def chosen(text: str) -> str:
    """The selected setting of a file such as "always [madvise] never"; "" if there is none."""
    return text.partition("[")[2].partition("]")[0]


def node_dir(sys_root: Path, node: int) -> Path:
    """The sysfs directory of a node."""
    return sys_root / "devices/system/node" / f"node{node}"


def memory_nodes(sys_root: Path) -> tuple[int, ...]:
    """Online nodes with memory, ascending; () on a kernel without NUMA."""
    text = read_text(sys_root / "devices/system/node/has_memory")
    return parse_list(text) if text else ()


def cpu_nodes(sys_root: Path) -> tuple[int, ...]:
    """Nodes with CPUs, ascending."""
    text = read_text(sys_root / "devices/system/node/has_cpu")
    return parse_list(text) if text else ()


def node_meminfo(sys_root: Path, node: int) -> dict[str, int]:
    """Values of nodeN/meminfo by name (MemTotal, "Active(file)", ...); {} if unreadable.

    Values are in bytes, but those of HugePages_... are numbers of huge pages.
    """
    text = read_text(node_dir(sys_root, node) / "meminfo") or ""
    return {
        name: int(value) * (1 if name.startswith("HugePages_") else 1024)
        for name, value in _MEMINFO.findall(text)
    }


def node_distances(sys_root: Path, node: int) -> tuple[int, ...]:
    """Distances from the node to all online nodes, in the order of their IDs."""
    text = read_text(node_dir(sys_root, node) / "distance") or ""
    return tuple(int(word) for word in text.split())


def online_nodes(sys_root: Path) -> tuple[int, ...]:
    """Online nodes, ascending."""
    text = read_text(sys_root / "devices/system/node/online")
    return parse_list(text) if text else ()


def node_access(sys_root: Path, node: int) -> dict[str, float]:
    """HMAT attributes of a node. Of access0 and access1, the first that has attributes is used.

    read_bandwidth and write_bandwidth are in MiB/s, read_latency and write_latency in
    ns, as in sysfs. Attributes that are absent or 0 are omitted.
    """
    for access in ("access0", "access1"):
        found: dict[str, float] = {}
        for name in ("read_bandwidth", "write_bandwidth", "read_latency", "write_latency"):
            text = read_text(node_dir(sys_root, node) / access / "initiators" / name)
            if text and text.isdigit() and int(text) > 0:
                found[name] = float(text)
        if found:
            return found
    return {}


def kernel_tiers(sys_root: Path) -> tuple[tuple[int, ...], ...]:
    """Node lists of the kernel's memory tiers, fastest first; () if the kernel has no tiers.

    The smaller the N in memory_tierN, the faster the tier.
    """
    found: list[tuple[int, tuple[int, ...]]] = []
    for path in (sys_root / "devices/virtual/memory_tiering").glob("memory_tier*"):
        number = path.name.removeprefix("memory_tier")
        nodes = parse_list(read_text(path / "nodelist") or "")
        if number.isdigit() and nodes:
            found.append((int(number), nodes))
    return tuple(nodes for _, nodes in sorted(found))


def high_watermark_bytes(proc_root: Path, node: int, page_bytes: int = 4096) -> int:
    """Sum of the high watermarks of the node's zones, from zoneinfo; 0 if unreadable.

    Migration has to leave this much memory free: if the free memory falls below the low watermark,
    kswapd reclaims pages until the high watermark is reached.
    """
    total = 0
    inside = False
    for line in (read_text(proc_root / "zoneinfo") or "").splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "Node":
            inside = words[1].rstrip(",") == str(node)
        elif inside and words[0] == "high" and len(words) == 2:
            total += int(words[1]) * page_bytes
    return total
