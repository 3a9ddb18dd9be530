# SPDX-License-Identifier: Apache-2.0
"""Experiments with pages on the guest's two nodes; prints one JSON object. Usage: moves.py NAME.

The experiments only report results; tests/vm/test_migrate.py checks them.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sentineld.host import sysfs
from sentineld.host.tiers import discover
from sentineld.migrate.births import MADV_POPULATE_WRITE
from sentineld.migrate.calibrate import measure
from sentineld.migrate.node_capacity import Capacity
from sentineld.migrate.syscalls import (
    move_pages,
    numa_maps,
    page_addresses,
    prefer_node,
    query_pages,
)
from sentineld.model.protocol import HUGE_BYTES

PAGE = 4096
FAST, SLOW = 0, 1
SYS = Path("/sys")


class Memory:
    """Anonymous memory of this process. The kernel allocates the memory on `node` if possible."""

    def __init__(self, pages: int, node: int, touched: bool = True, huge: bool = False) -> None:
        size = pages * PAGE
        self.map = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.offset = -base % HUGE_BYTES
        self.start = base + self.offset
        self.size = size
        prefer_node(self.start, size, node)
        self.words = np.frombuffer(self.map, np.uint64, size // 8, self.offset)
        self.pages = page_addresses(self.start, size)
        if touched:
            self.words[:] = np.arange(len(self.words), dtype=np.uint64)

    def intact(self) -> bool:
        return bool(np.array_equal(self.words, np.arange(len(self.words), dtype=np.uint64)))

    def on(self, node: int) -> int:
        return int(np.count_nonzero(query_pages(0, self.pages) == node))


def there_and_back() -> dict[str, object]:
    memory = Memory(4096, FAST)
    seen = [memory.on(FAST)]
    statuses = []
    for node in (SLOW, FAST):
        result = move_pages(os.getpid(), memory.pages, node)
        statuses.append(int(np.count_nonzero(result.status == node)))
        seen.append(memory.on(node))
    maps = numa_maps(os.getpid(), [(memory.start, memory.size)])
    return {"seen": seen, "statuses": statuses, "maps": maps[FAST], "intact": memory.intact()}


def statuses() -> dict[str, object]:
    """Move one page of each kind: resident, absent, zero page, shared with a child, unmapped."""
    memory = Memory(5, FAST, touched=False)
    memory.words[0] = 1
    zero = int(memory.words[512 * 2])  # reading absent page 2 maps the zero page
    memory.words[512 * 3] = 1
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    memory.words[0] = 2  # the write copies page 0, so that only page 3 stays shared
    pages = np.append(memory.pages[:4], np.uint64(4096))
    status = move_pages(0, pages, SLOW).status.tolist()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    dead = "nothing"
    try:
        query_pages(child, memory.pages)
    except ProcessLookupError:
        dead = "ProcessLookupError"
    return {"status": status, "zero": zero, "dead": dead}


def huge() -> dict[str, object]:
    """Move huge pages by naming their head pages. Then request to move all their 4 KiB pages back:
    the kernel reports EBUSY for some of these, although they move with their huge page."""
    memory = Memory(8 * 512, FAST, huge=True)
    before = huge_bytes(memory.start)
    heads = memory.pages[memory.pages % np.uint64(HUGE_BYTES) == 0]
    move_pages(os.getpid(), heads, SLOW)
    moved = int(np.count_nonzero(query_pages(os.getpid(), memory.pages) == SLOW))
    after = huge_bytes(memory.start)
    every = move_pages(os.getpid(), memory.pages, FAST)
    return {
        "before": before,
        "after": after,
        "moved": moved,
        "every_status": int(np.count_nonzero(every.status == FAST)),
        "every_seen": memory.on(FAST),
        "intact": memory.intact(),
    }


def huge_bytes(address: int) -> int:
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            low, high = (int(part, 16) for part in head.split("-"))
            inside = low <= address < high
        elif inside and head == "AnonHugePages:":
            return int(line.split()[1]) * 1024
    return -1


def full() -> dict[str, object]:
    """Move pages to a full slow node, and compare the reported statuses with the true nodes."""
    room_before = Capacity(discover()).best_node(1)[1]
    with filled(SLOW, leave_bytes=8 << 20):
        # More pages than the node can take, even with reclaim and the memory between watermarks.
        memory = Memory(64 * 256, FAST)
        room = Capacity(discover()).best_node(1)[1]
        result = move_pages(os.getpid(), memory.pages, SLOW)
        true = query_pages(0, memory.pages)
    return {
        "error": result.error,
        "moved": int(np.count_nonzero(result.status == SLOW)),
        "wrong": int(np.count_nonzero(result.status != true)),
        "room": room,
        "room_before": room_before,
        "bytes": memory.size,
        "intact": memory.intact(),
    }


@contextmanager
def filled(node: int, leave_bytes: int) -> Iterator[None]:
    """While the context is active, the node's memory is occupied, except for about leave_bytes
    above the node's high watermark. Huge pages of hugetlbfs occupy most of it, because the kernel
    reserves them without clearing them. Clearing would take most of the experiment's time."""
    reserved = SYS / f"devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
    # Drop the page cache: otherwise the kernel could reclaim it to make room for the moved pages.
    Path("/proc/sys/vm/drop_caches").write_text("3")
    reserve = sysfs.high_watermark_bytes(Path("/proc"), node)

    def excess_bytes() -> int:
        return max(sysfs.node_meminfo(SYS, node)["MemFree"] - reserve - leave_bytes, 0)

    reserved.write_text(str(excess_bytes() // HUGE_BYTES))
    try:
        # If the node's memory is fragmented, it has fewer huge pages: small pages occupy the rest.
        rest = Memory(excess_bytes() // PAGE, node, touched=False)
        rest.map.madvise(MADV_POPULATE_WRITE, rest.offset, rest.size)
        yield
    finally:
        reserved.write_text("0")


def calibrate() -> dict[str, object]:
    tiers = discover()
    rates = measure(tiers)
    return {
        "source": tiers.source,
        "nodes": [tier.nodes for tier in tiers.tiers],
        "latency": [tier.read_latency_ns for tier in tiers.tiers],
        "demote": rates.demote_bytes_per_s,
        "promote": rates.promote_bytes_per_s,
    }


EXPERIMENTS: dict[str, Callable[[], dict[str, object]]] = {
    function.__name__: function for function in (there_and_back, statuses, huge, full, calibrate)
}

if __name__ == "__main__":
    print(json.dumps(EXPERIMENTS[sys.argv[1]]()))
