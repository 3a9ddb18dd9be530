# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of nodes, zones and a process's tensor memory, and its switches."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096

_SYS_MIGRATE_PAGES = 256  # x86-64
_libc = ctypes.CDLL(None, use_errno=True)

_CGROUPS = Path("/sys/fs/cgroup")
_VM = Path("/proc/sys/vm")
_NUMA_BALANCING = Path("/proc/sys/kernel/numa_balancing")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_DEMOTION = Path("/sys/kernel/mm/numa/demotion_enabled")

MIN_FREE_BYTES = 4 << 20
"""Fixed for the demo, so that every run has the same watermarks."""

CPU_LISTS_FRACTION = 1000
"""Each zone's part that all CPUs' lists of free pages may hold. By default it is an eighth (kernel
mm/page_alloc.c, MIN_PERCPU_PAGELIST_HIGH_FRACTION): more than what the balloon leaves, and whoever
frees pages on one CPU would take them from a trainer on another."""

TIERING_COUNTERS = (
    "pgpromote_success",
    "pgdemote_kswapd",
    "pgdemote_direct",
    "pgdemote_khugepaged",
    "pgdemote_proactive",
)
"""Pages moved by the kernel's own tiering; kernels have a part of them."""


@dataclass(frozen=True)
class Zone:
    """One memory zone of a node; all in pages. reserve: kept from user memory by lowmem_reserve."""

    node: int
    name: str
    free: int
    high: int
    reserve: int


def zones(text: str) -> list[Zone]:
    """The zones with memory that /proc/zoneinfo tells of."""
    found = []
    for block in re.split(r"^(?=Node )", text, flags=re.MULTILINE):
        head = re.match(r"Node (\d+), zone +(\w+)", block)
        if head is None or _number(block, "managed") == 0:
            continue
        protection = re.search(r"protection: \(([\d, ]+)\)", block)
        reserves = [int(word) for word in protection[1].split(",")] if protection else [0]
        # the last entry is that of movable allocations: user memory
        found.append(
            Zone(
                node=int(head[1]),
                name=head[2],
                free=_number(block, "nr_free_pages"),
                high=_number(block, "high"),
                reserve=reserves[-1],
            )
        )
    return found


def _number(block: str, word: str) -> int:
    match = re.search(rf"^\s+{word}\s+(\d+)", block, flags=re.MULTILINE)
    return int(match[1]) if match else 0


def free_above_high_bytes(node: int) -> int:
    """Bytes that user memory can take from a node before its zones reach the high watermark."""
    _VM.joinpath("stat_refresh").write_text("1")
    pages = sum(
        max(0, zone.free - zone.high - zone.reserve)
        for zone in zones(Path("/proc/zoneinfo").read_text())
        if zone.node == node
    )
    return pages * PAGE_BYTES


def anonymous_bytes(node: int) -> int:
    """Bytes of processes' anonymous memory on a node; locked memory is part of it."""
    text = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    match = re.search(r"AnonPages:\s+(\d+) kB", text)
    return int(match[1]) << 10 if match else 0


def drop_caches() -> None:
    """Drop clean page cache and slab."""
    _VM.joinpath("drop_caches").write_text("3")


def compact() -> None:
    """Gather free memory, that of the CPUs' lists, too."""
    _VM.joinpath("compact_memory").write_text("1")


def fix_reserve() -> None:
    """Fix the watermarks, and how many free pages a CPU may keep for itself.

    After the switch of huge pages: the kernel raises min_free_kbytes with it (mm/khugepaged.c).
    """
    _VM.joinpath("min_free_kbytes").write_text(str(MIN_FREE_BYTES >> 10))
    _VM.joinpath("watermark_boost_factor").write_text("0")
    _VM.joinpath("percpu_pagelist_high_fraction").write_text(str(CPU_LISTS_FRACTION))


def only_asked_for_huge_pages() -> None:
    """Have huge pages where a program asks for them: khugepaged takes a third of an emulated CPU,
    and huge pages of what is not tensors come and go on node 0 by two MiB."""
    _HUGE_PAGES.write_text("madvise")


def confine(pid: int, node: int) -> None:
    """Let a process take memory from one node alone, by a cpuset, until free_to_choose()."""
    group = _CGROUPS / "sentineld-demo"
    (_CGROUPS / "cgroup.subtree_control").write_text("+cpuset")
    group.mkdir(exist_ok=True)
    (group / "cpuset.mems").write_text(str(node))
    (group / "cgroup.procs").write_text(str(pid))


def free_to_choose(pid: int) -> None:
    """Let a process take memory from all nodes again; what it has stays where it is."""
    (_CGROUPS / "cgroup.procs").write_text(str(pid))


def clear_node(node: int, to_node: int, but_pids: tuple[int, ...] = ()) -> None:
    """Move what all processes but a few have on a node elsewhere, as far as it can be moved, and
    drop page cache.

    Else a kernel that demotes their cold pages, or reclaims the cache, would free more of the node
    than a balloon has left, and give the room to tensors.
    """
    masks = [ctypes.byref(ctypes.c_ulong(1 << bit)) for bit in (node, to_node)]
    bits = ctypes.c_ulong(8 * ctypes.sizeof(ctypes.c_ulong))
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in but_pids:
            continue
        # a kernel thread has no memory, and another may be gone: neither matters
        _libc.syscall(_SYS_MIGRATE_PAGES, ctypes.c_int(int(process.name)), bits, *masks)
    drop_caches()


def set_kernel_tiering(on: bool) -> None:
    """Switch the kernel's own promotion (numa_balancing=2) and demotion."""
    _DEMOTION.write_text("true" if on else "false")
    _NUMA_BALANCING.write_text("2" if on else "0")


def kernel_tiering() -> dict[str, str]:
    """The switches as they are."""
    return {
        "numa_balancing": _NUMA_BALANCING.read_text().strip(),
        "demotion_enabled": _DEMOTION.read_text().strip(),
    }


def kernel_moved_bytes() -> int:
    """Bytes that the kernel's own tiering has moved since boot."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(counters.get(name, 0)) for name in TIERING_COUNTERS) * PAGE_BYTES


def tensor_ranges(pid: int) -> list[tuple[int, int]]:
    """The addresses (start, end) at which a process under the shim has its tensors.

    They are its anonymous mappings that were told not to use huge pages (flag
    nh in smaps); neighbours are joined.
    """
    text = Path(f"/proc/{pid}/smaps").read_text()
    joined: list[tuple[int, int]] = []
    for start, end in sorted(_told_nohuge(text)):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _told_nohuge(smaps: str) -> Iterator[tuple[int, int]]:
    span: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0\s*(\[anon:\S+)?$", line):
            span = int(head[1], 16), int(head[2], 16)
        elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            span = None
        elif span is not None and line.startswith("VmFlags:") and "nh" in line.split():
            yield span


def tensor_bytes_by_node(pid: int) -> dict[int, int]:
    """Resident bytes of a process's tensor memory by node, as the kernel counts them."""
    ranges = tensor_ranges(pid)
    by_node: Counter[int] = Counter()
    for start, node, size_bytes in _mapped(pid):
        if any(begin <= start < end for begin, end in ranges):
            by_node[node] += size_bytes
    return dict(by_node)


def _mapped(pid: int) -> Iterator[tuple[int, int, int]]:
    """Start, node and resident bytes of each mapping on each node (/proc/PID/numa_maps)."""
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        words = line.split()
        for word in words[2:]:
            if match := re.fullmatch(r"N(\d+)=(\d+)", word):
                yield int(words[0], 16), int(match[1]), int(match[2]) * PAGE_BYTES
