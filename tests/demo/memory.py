# SPDX-License-Identifier: Apache-2.0
"""Reads and sets the kernel's state of nodes, zones, processes and memory tiering."""

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
"""min_free_kbytes, fixed so that every run has the same watermarks."""

PCP_HIGH_FRACTION = 1000
"""The per-CPU page lists may hold at most 1/1000 of a zone. By default, the kernel lets them
grow to 1/8 (mm/page_alloc.c, MIN_PERCPU_PAGELIST_HIGH_FRACTION), which is more than the balloon
leaves free. A trainer on one CPU cannot allocate free pages that are in another CPU's list."""

TIERING_COUNTERS = (
    "pgpromote_success",
    "pgdemote_kswapd",
    "pgdemote_direct",
    "pgdemote_khugepaged",
    "pgdemote_proactive",
)
"""Counters of /proc/vmstat for pages moved by kernel tiering; older kernels lack some of them."""


@dataclass(frozen=True)
class Zone:
    """One memory zone of a node; sizes are in pages."""

    node: int
    name: str
    free: int
    high: int  # the high watermark
    reserve: int  # lowmem_reserve: pages that are not available to user memory


def zones(text: str) -> list[Zone]:
    """The zones that have memory. text: the text of /proc/zoneinfo."""
    found = []
    for block in re.split(r"^(?=Node )", text, flags=re.MULTILINE):
        head = re.match(r"Node (\d+), zone +(\w+)", block)
        if head is None or _number(block, "managed") == 0:
            continue
        protection = re.search(r"protection: \(([\d, ]+)\)", block)
        reserves = [int(word) for word in protection[1].split(",")] if protection else [0]
        # Entry n of "protection" is the number of pages that allocations must leave free in this
        # zone if they may use the zones 0 to n. User memory may use the highest zones, so one of
        # the last entries applies to it. The last entries are equal, so take the last one.
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
    """Bytes that user memory can still take on a node until its zones reach the high watermarks."""
    _VM.joinpath("stat_refresh").write_text("1")
    pages = sum(
        max(0, zone.free - zone.high - zone.reserve)
        for zone in zones(Path("/proc/zoneinfo").read_text())
        if zone.node == node
    )
    return pages * PAGE_BYTES


def anonymous_bytes(node: int) -> int:
    """Bytes of anonymous memory on a node, locked memory included."""
    text = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    match = re.search(r"AnonPages:\s+(\d+) kB", text)
    return int(match[1]) << 10 if match else 0


def drop_caches() -> None:
    """Drop clean page cache and reclaimable slab."""
    _VM.joinpath("drop_caches").write_text("3")


def compact() -> None:
    """Compact memory, which also drains the per-CPU page lists."""
    _VM.joinpath("compact_memory").write_text("1")


def fix_watermarks() -> None:
    """Fix the watermarks and the size of the per-CPU page lists.

    Call restrict_huge_pages() earlier: it makes the kernel raise min_free_kbytes (mm/khugepaged.c),
    and a call afterwards would replace the value that this function sets.
    """
    _VM.joinpath("min_free_kbytes").write_text(str(MIN_FREE_BYTES >> 10))
    _VM.joinpath("watermark_boost_factor").write_text("0")
    _VM.joinpath("percpu_pagelist_high_fraction").write_text(str(PCP_HIGH_FRACTION))


def restrict_huge_pages() -> None:
    """Set transparent huge pages to madvise.

    Otherwise khugepaged would take a third of an emulated CPU, and huge pages outside tensors would
    change the free memory of node 0 in steps of 2 MiB.
    """
    _HUGE_PAGES.write_text("madvise")


def confine(pid: int, node: int) -> None:
    """Restrict a process to the memory of one node with a cpuset, until unconfine()."""
    group = _CGROUPS / "sentineld-demo"
    (_CGROUPS / "cgroup.subtree_control").write_text("+cpuset")
    group.mkdir(exist_ok=True)
    (group / "cpuset.mems").write_text(str(node))
    (group / "cgroup.procs").write_text(str(pid))


def unconfine(pid: int) -> None:
    """Let a process allocate on all nodes again; its pages stay where they are."""
    (_CGROUPS / "cgroup.procs").write_text(str(pid))


def clear_node(node: int, to_node: int, except_pids: tuple[int, ...] = ()) -> None:
    """Move the node's movable pages, except those of except_pids, to to_node; drop the page cache.

    Otherwise the kernel could demote cold pages or reclaim the cache, so that tensors could use
    more of the node than the balloon left to them.
    """
    masks = [ctypes.byref(ctypes.c_ulong(1 << bit)) for bit in (node, to_node)]
    bits = ctypes.c_ulong(8 * ctypes.sizeof(ctypes.c_ulong))
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) in except_pids:
            continue
        # the call fails for kernel threads and for processes that have exited; they have no memory
        _libc.syscall(_SYS_MIGRATE_PAGES, ctypes.c_int(int(process.name)), bits, *masks)
    drop_caches()


def set_kernel_tiering(on: bool) -> None:
    """Switch the kernel's promotion (numa_balancing=2) and demotion on or off."""
    _DEMOTION.write_text("true" if on else "false")
    _NUMA_BALANCING.write_text("2" if on else "0")


def kernel_tiering() -> dict[str, str]:
    """The current values of the switches that set_kernel_tiering() sets."""
    return {
        "numa_balancing": _NUMA_BALANCING.read_text().strip(),
        "demotion_enabled": _DEMOTION.read_text().strip(),
    }


def kernel_moved_bytes() -> int:
    """Bytes that kernel tiering has moved since boot."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return sum(int(counters.get(name, 0)) for name in TIERING_COUNTERS) * PAGE_BYTES


def tensor_ranges(pid: int) -> list[tuple[int, int]]:
    """The addresses (start, end) of tensor memory in a process under the shim.

    These are the anonymous mappings with MADV_NOHUGEPAGE (flag nh in smaps); adjacent ones are
    joined.
    """
    text = Path(f"/proc/{pid}/smaps").read_text()
    joined: list[tuple[int, int]] = []
    for start, end in sorted(_nohugepage_mappings(text)):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _nohugepage_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    span: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ 00:00 0\s*(\[anon:\S+)?$", line):
            span = int(head[1], 16), int(head[2], 16)
        elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            span = None
        elif span is not None and line.startswith("VmFlags:") and "nh" in line.split():
            yield span


def tensor_bytes_by_node(pid: int) -> dict[int, int]:
    """Resident bytes of a process's tensor memory by node."""
    ranges = tensor_ranges(pid)
    by_node: Counter[int] = Counter()
    for start, node, size_bytes in _resident(pid):
        if any(begin <= start < end for begin, end in ranges):
            by_node[node] += size_bytes
    return dict(by_node)


def _resident(pid: int) -> Iterator[tuple[int, int, int]]:
    """(start, node, resident bytes) of each mapping on each node, from /proc/PID/numa_maps."""
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        words = line.split()
        for word in words[2:]:
            if match := re.fullmatch(r"N(\d+)=(\d+)", word):
                yield int(words[0], 16), int(match[1]), int(match[2]) * PAGE_BYTES
