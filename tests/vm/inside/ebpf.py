# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest for test_ebpf.py: makes known accesses and reports what the probes recorded.

PYTHONPATH=TREE python3 tests/vm/inside/ebpf.py     prints one JSON object
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.model.kernel_events import FAULT_KINDS, EbpfCounters
from sentineld.model.records import ACCESS_RESIDENCY, ACCESS_WRITE
from sentineld.observe.ebpf import EbpfProbes
from sentineld.observe.page_sampler import PageSampler
from sentineld.observe.pidfd import children
from tests.vm.inside.target import BURST_PAGES, PAGE, PAGES, Target

RING_BYTES = 1 << 20


def rss_kib() -> int:
    """Resident set of this process in KiB."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def faults_of(probes: EbpfProbes, observed: Target) -> list[tuple[int, str, bool]]:
    """Drain the records; returns (page, kind, write bit) of each record of a page in the region of
    the process (see target.py)."""
    records = probes.drain()
    assert set(records["pid"]) <= {observed.pid}
    pages = (records["address"].astype(np.int64) - observed.address) // PAGE
    inside = (pages >= 0) & (pages < PAGES + BURST_PAGES)
    return [
        (int(page), FAULT_KINDS[record["kind"]], bool(record["write"]))
        for page, record in zip(pages[inside], records[inside], strict=True)
    ]


def total(counters: EbpfCounters, pid: int) -> int:
    """The number of faults counted for one process."""
    return sum(counters["faults"][pid].values())


def record_faults(probes: EbpfProbes, observed: Target) -> dict[str, Any]:
    """Make a watched and an unwatched process touch known pages; return the recorded faults."""
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
    """Move pages of the watched process; the first eight of them are pinned."""
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
    """Cause more faults between two drains than the ring has room for."""
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
    """Count the same accesses in the module's log and with the tracepoint sentinel:page_access."""
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
    """Load the eBPF programs once, and run all observations with them."""
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
    main()
