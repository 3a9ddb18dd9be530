# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest for test_ebpf.py: makes known accesses and reports what the probes recorded.

    PYTHONPATH=TREE python3 tests/vm/ebpf_in_guest.py     prints one JSON object

The observed process is this file with the argument `target`; it executes one command
at a time on its region.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.model.kernel_events import FAULT_KINDS, EbpfCounters
from sentineld.model.records import ACCESS_RESIDENCY, ACCESS_WRITE
from sentineld.observe import uapi
from sentineld.observe.ebpf import EbpfProbes
from sentineld.observe.page_sampler import PageSampler
from sentineld.observe.pidfd import children

PAGE = mmap.PAGESIZE
PAGES = 4096
BURST_PAGES = 40_000
RING_BYTES = 1 << 20
MOVE_PAGES, VMSPLICE = 279, 278
UNSET_STATUS = -9999

libc = ctypes.CDLL(None, use_errno=True)


def target() -> None:
    """The observed process: reads JSON commands from its socket and replies to each."""
    region = mmap.mmap(-1, (PAGES + BURST_PAGES) * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(region))
    commands = socket.socket(fileno=os.dup(0))
    epoch_fd = -1
    pipe = os.pipe()
    commands.send(json.dumps(address).encode())
    while True:
        message, fds, _, _ = socket.recv_fds(commands, 4096, 1)
        if not message:
            return
        verb, first, last = json.loads(message)
        answer = 0
        if verb == "write":
            for page in range(first, last):
                region[page * PAGE] = 1
        elif verb == "read":
            for page in range(first, last):
                answer += region[page * PAGE]
        elif verb == "fill":
            # the kernel writes, so the faults are taken in kernel mode
            with open("/dev/zero", "rb", buffering=0) as zeroes:
                answer = zeroes.readinto(memoryview(region)[first * PAGE : last * PAGE])
        elif verb == "spin":
            # write the first FIRST pages repeatedly for LAST milliseconds
            deadline = time.monotonic() + last / 1e3
            while time.monotonic() < deadline:
                for page in range(first):
                    region[page * PAGE] = 1
        elif verb == "huge":
            region.madvise(mmap.MADV_HUGEPAGE)
        elif verb == "pin":
            # a pipe holds references to the pages, as a device does during a transfer
            vector = (ctypes.c_uint64 * 2)(address + first * PAGE, (last - first) * PAGE)
            answer = libc.syscall(VMSPLICE, pipe[1], vector, 1, 0)
        elif verb == "epoch_fd":
            epoch_fd = fds[0]
        elif verb == "epoch":
            epoch = uapi.Epoch()
            fcntl.ioctl(epoch_fd, uapi.IOC_EPOCH, epoch)
            answer = epoch.epoch
        commands.send(json.dumps(answer).encode())


class Target:
    """The observer's end of the observed process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [sys.executable, __file__, "target"]
            self._process = subprocess.Popen(argv, stdin=theirs.fileno())
        self.pid = self._process.pid
        self.address: int = json.loads(self._socket.recv(4096))

    def do(self, verb: str, first: int = 0, last: int = 0, fds: tuple[int, ...] = ()) -> int:
        """Run one command in the process; returns its reply."""
        socket.send_fds(self._socket, [json.dumps([verb, first, last]).encode()], list(fds))
        answer: int = json.loads(self._socket.recv(4096))
        return answer

    def end(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()

    def move(self, first: int, last: int, node: int) -> dict[str, int]:
        """move_pages() of a part of the region: its return value, and the number of pages moved."""
        count = last - first
        addresses = self.address + np.arange(first, last, dtype=np.uint64) * PAGE
        nodes = np.full(count, node, dtype=np.int32)
        status = np.full(count, UNSET_STATUS, dtype=np.int32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (addresses, nodes, status)]
        returned = libc.syscall(MOVE_PAGES, self.pid, ctypes.c_ulong(count), *pointers, 2)
        return {"returned": returned, "arrived": int((status == node).sum())}


def rss_kib() -> int:
    """Resident set of this process in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def faults_of(probes: EbpfProbes, observed: Target) -> list[tuple[int, str, bool]]:
    """Drain the records: (page of the region, kind, write bit) of each."""
    records = probes.drain()
    assert set(records["pid"]) <= {observed.pid}
    pages = (records["address"].astype(np.int64) - observed.address) // PAGE
    inside = (pages >= 0) & (pages < PAGES + BURST_PAGES)
    return [
        (int(page), FAULT_KINDS[record["kind"]], bool(record["write"]))
        for page, record in zip(pages[inside], records[inside], strict=True)
    ]


def total(counters: EbpfCounters, pid: int) -> int:
    """The number of faults counted of one process."""
    return sum(counters["faults"][pid].values())


def record_faults(probes: EbpfProbes, observed: Target) -> dict[str, Any]:
    """Known touches by a watched process and by one that is not watched."""
    unwatched = Target()
    start_ns = time.monotonic_ns()
    probes.watch(observed.pid)
    probes.record(observed.pid)
    observed.do("write", 0, 1000)
    observed.do("read", 1000, 1500)
    observed.do("write", 1400, 1500)
    unwatched.do("write", 0, 1000)
    observed.do("fill", 2000, 2100)
    records = faults_of(probes, observed)
    counters = probes.counters()
    unwatched.end()
    probes.stop_recording(observed.pid)
    observed.do("write", 1500, 2000)
    counted = probes.counters()["faults"][observed.pid]["missing_write"]
    return {
        "records": records,
        "counters": counters["faults"],
        "observed": observed.pid,
        "drained_without_record": len(faults_of(probes, observed)),
        "counted_without_record": counted - counters["faults"][observed.pid]["missing_write"],
        "seconds": (time.monotonic_ns() - start_ns) / 1e9,
    }


def move(probes: EbpfProbes, observed: Target) -> dict[str, Any]:
    """Pages moved by this process, some of them pinned."""
    observed.do("pin", 0, 8)
    before = probes.counters()
    held = observed.move(0, 8, 1)
    between = probes.counters()
    moved = observed.move(8, 1000, 1)
    return {
        "before": before["migrations"],
        "held": held,
        "between": between["migrations"],
        "moved": moved,
        "after": probes.counters()["migrations"],
        "movers": [row for row in probes.counters()["movers"] if row["pid"] == os.getpid()],
        "self": os.getpid(),
    }


def overflow(probes: EbpfProbes, observed: Target) -> dict[str, Any]:
    """More faults between two drains than the ring holds."""
    probes.record(observed.pid)
    before = probes.counters()
    observed.do("write", PAGES, PAGES + BURST_PAGES)
    counters = probes.counters()
    start = time.perf_counter()
    records = probes.drain()
    seconds = time.perf_counter() - start
    return {
        "counted": total(counters, observed.pid) - total(before, observed.pid),
        "drained": len(records),
        "dropped": counters["dropped"]["fault_records"] - before["dropped"]["fault_records"],
        "drain_ms": seconds * 1e3,
        "drained_after": len(faults_of(probes, observed)),
    }


def module_references() -> int:
    """The reference count of the kernel module."""
    return int(Path("/sys/module/sentinel/refcnt").read_text())


def cross_check(probes: EbpfProbes) -> dict[str, Any]:
    """The module's log and sentinel:page_access for the same accesses."""
    references = [module_references()]
    observed = Target()
    observed.do("write", 0, 600)
    with PageSampler() as sampler:
        probes.watch(observed.pid)
        references.append(module_references())
        sampler.attach(observed.pid)
        sampler.add_range(observed.address, 1000 * PAGE)
        sampler.arm(observed.address, 1000 * PAGE)
        epoch_fd = sampler.epoch_fd()
        observed.do("epoch_fd", fds=(epoch_fd,))
        os.close(epoch_fd)
        observed.do("read", 0, 300)
        observed.do("write", 200, 400)
        observed.do("epoch")
        observed.do("write", 100, 700)
        observed.do("epoch")
        observed.do("read", 0, 50)
        samples = sampler.drain()
        accesses = samples[samples["flags"] & ACCESS_RESIDENCY == 0]
        result = {
            "log_accesses": len(accesses),
            "log_writes": int((accesses["flags"] & ACCESS_WRITE != 0).sum()),
            "log_epochs": np.unique(accesses["epoch"]).tolist(),
            "log_lost": sampler.stats().lost,
            "counted": probes.counters()["accesses"][observed.pid],
        }
    probes.unwatch(observed.pid)
    observed.end()
    references.append(module_references())
    return {**result, "references": references, "notes": probes.notes}


def main() -> None:
    """Run all observations with the programs loaded once."""
    rss_before = rss_kib()
    probes = EbpfProbes(RING_BYTES)
    start = time.perf_counter()
    probes.start(280)
    loaded = {
        "load_seconds": time.perf_counter() - start,
        "rss_kib": [rss_before, rss_kib()],
        "children": children(os.getpid()),
        "notes": list(probes.notes),
    }
    observed = Target()
    report: dict[str, Any] = {
        "loaded": loaded,
        "faults": record_faults(probes, observed),
        "moves": move(probes, observed),
        "overflow": overflow(probes, observed),
    }
    probes.unwatch(observed.pid)
    observed.end()
    if Path("/dev/sentinel").exists():
        report["cross_check"] = cross_check(probes)
    report["left"] = probes.counters()["faults"]
    probes.close()
    print(json.dumps(report))


if __name__ == "__main__":
    target() if sys.argv[1:] == ["target"] else main()
