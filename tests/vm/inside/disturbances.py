# SPDX-License-Identifier: Apache-2.0
"""Moves, reclaims and collapses a process's pages; prints the probes' records as one JSON object.

    PYTHONPATH=TREE python3 tests/vm/inside/disturbances.py

tests/vm/test_disturbances.py checks the result. This process acts as the daemon. The
disturbances come from the kernel, from tools, or from processes that run this file with
the argument `move`, `shuttle`, `page_out` or `fill`.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentineld.host.sysfs import node_meminfo
from sentineld.migrate.syscalls import move_pages, page_addresses
from sentineld.model.kernel_events import FAULT_KINDS, Disturbance
from sentineld.observe.ebpf import EbpfProbes
from sentineld.service.disturbances import in_words
from tests.vm.inside.target import PAGE, PAGES, Target

FAST, SLOW = 0, 1
PROCESS_MADVISE, MADV_PAGEOUT = 440, 21
WAIT_S = 150.0
ZRAM = Path("/sys/block/zram0")
CGROUP = Path("/sys/fs/cgroup/disturbances")
NUMA = Path("/sys/kernel/debug/sched/numa_balancing")
KHUGEPAGED = Path("/sys/kernel/mm/transparent_hugepage/khugepaged")

libc = ctypes.CDLL(None, use_errno=True)


class Observer:
    """Starts the probes, and watches one process at a time."""

    def __init__(self) -> None:
        self.probes = EbpfProbes()
        self.probes.start(280)

    @contextmanager
    def target(self) -> Iterator[Target]:
        """Start a process, watch it and record its faults."""
        target = Target()
        self.probes.watch(target.pid)
        self.probes.record(target.pid)
        try:
            yield target
        finally:
            self.probes.unwatch(target.pid)
            target.end()

    def rows(self, target: Target) -> list[Disturbance]:
        """The disturbances of the process so far."""
        return self.probes.counters()["disturbances"][target.pid]

    def drain_faults(self, target: Target) -> dict[str, int]:
        """Drain the records; returns the number in the target's region, by kind of fault."""
        records = self.probes.drain()
        inside = (records["address"] >= target.address) & (
            records["address"] < target.address + PAGES * PAGE
        )
        kinds = records["kind"][inside].tolist()
        return {kind: kinds.count(number) for number, kind in enumerate(FAULT_KINDS)}

    def report(self, target: Target) -> dict[str, Any]:
        """The process's disturbances, the text that describes them to users, the process's fault
        counters, and the result of drain_faults()."""
        rows = self.rows(target)
        return {
            "rows": rows,
            "words": in_words(rows),
            "faults": self.probes.counters()["faults"][target.pid],
            "recorded": self.drain_faults(target),
        }


def helper(*arguments: object) -> None:
    """Run this file with these arguments in another process."""
    subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True)


def repeat_until(condition: Callable[[], bool], act: Callable[[], object]) -> bool:
    """Call act() until the condition holds; return False if it does not hold after WAIT_S."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        act()
    return True


def chosen(text: str) -> str:
    """The current value in a sysfs file's text, which may list all choices: "a [current] b"."""
    return text.partition("[")[2].partition("]")[0] or text.strip()


@contextmanager
def setting(*values: tuple[Path | str, object]) -> Iterator[None]:
    """Write values to kernel files for the duration of the block, then restore the old values."""
    before = [(Path(path), chosen(Path(path).read_text())) for path, _ in values]
    try:
        for path, value in values:
            Path(path).write_text(str(value))
        yield
    finally:
        for path, text in before:
            path.write_text(text)


@contextmanager
def swap(mebibytes: int) -> Iterator[None]:
    """Add swap on zram: pages that are swapped out are then freed without waiting for a disk."""
    with udev_stopped():
        subprocess.run(["modprobe", "zram"], check=True)
        (ZRAM / "disksize").write_text(f"{mebibytes}M")
        subprocess.run(["mkswap", "-q", "/dev/zram0"], check=True)
        subprocess.run(["swapon", "/dev/zram0"], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", "/dev/zram0"], check=True)
            (ZRAM / "reset").write_text("1")
            subprocess.run(["rmmod", "zram"], check=True)


@contextmanager
def udev_stopped() -> Iterator[None]:
    """Pause udev: it reopens each disk that was closed, and an open disk can't be removed."""
    subprocess.run(["udevadm", "control", "--stop-exec-queue"], check=True)
    try:
        yield
    finally:
        subprocess.run(["udevadm", "control", "--start-exec-queue"], check=True)


class Filler:
    """A process that allocates memory on the fast node and keeps this memory until it exits."""

    def __init__(self) -> None:
        # Without --membind, allocations would fall back to the next node before kswapd runs.
        command = ["numactl", f"--membind={FAST}", sys.executable, __file__, "fill"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def take_more(self) -> None:
        """Allocate 64 MiB more."""
        self._requests.write(b"\n")
        self._requests.flush()
        self._answers.readline()

    def __enter__(self) -> Filler:
        return self

    def __exit__(self, *_: object) -> None:
        self._requests.close()
        self._process.wait()


def free_bytes(node: int) -> int:
    """Free memory of a node."""
    return node_meminfo(Path("/sys"), node)["MemFree"]


def foreign_moves(observer: Observer) -> dict[str, Any]:
    """Pages are moved by this process, by another process, and by the tool migratepages. Eight of
    the pages that the other process tries to move are pinned."""
    with observer.target() as target:
        target.do("write", 0, 600)
        target.move(0, 300, SLOW)
        own = observer.rows(target)
        target.do("pin", 300, 308)
        helper("move", target.pid, target.address + 300 * PAGE, 300, SLOW)
        report = observer.report(target)
        subprocess.run(["migratepages", str(target.pid), str(SLOW), str(FAST)], check=True)
        return {"own": own, **report, "after_tool": observer.rows(target)}


def reclaim(observer: Observer) -> dict[str, Any]:
    """Another process swaps out 500 pages of the watched process, which then reads 400 of them."""
    with swap(64), setting(("/proc/sys/vm/page-cluster", 0)), observer.target() as target:
        target.do("write", 0, 500)
        observer.drain_faults(target)
        helper("page_out", target.pid, target.address, 500)
        rows = observer.rows(target)
        target.do("read", 0, 400)
        return {**observer.report(target), "rows": rows}


def demotion(observer: Observer) -> dict[str, Any]:
    """Memory of a control group is reclaimed while demotion is enabled."""
    CGROUP.mkdir()
    try:
        demote = ("/sys/kernel/mm/numa/demotion_enabled", "true")
        with setting(demote), observer.target() as target:
            (CGROUP / "cgroup.procs").write_text(str(target.pid))
            target.do("write", 0, 4000)
            # the write fails if less than 8 MiB can be reclaimed
            script = f"echo 8M > {CGROUP}/memory.reclaim"
            subprocess.run(["sh", "-c", script], stderr=subprocess.DEVNULL)
            return observer.report(target)
    finally:
        CGROUP.rmdir()


def kswapd(observer: Observer) -> dict[str, Any]:
    """The fast node fills up, and kswapd demotes pages."""
    values = (
        ("/sys/kernel/mm/numa/demotion_enabled", "true"),
        ("/proc/sys/vm/watermark_scale_factor", 500),
    )
    with setting(*values), observer.target() as target, Filler() as filler:
        target.do("write", 0, 4000)

        def press() -> None:
            # keep enough free memory to avoid the OOM killer
            if free_bytes(FAST) + free_bytes(SLOW) > 512 << 20:
                filler.take_more()
            else:
                time.sleep(0.5)

        repeat_until(lambda: any("kswapd" in row["by"] for row in observer.rows(target)), press)
        return observer.report(target)


def balancing(observer: Observer) -> dict[str, Any]:
    """NUMA balancing promotes pages that CPUs of the fast node use."""
    values = (
        (NUMA / "scan_delay_ms", 100),
        (NUMA / "scan_period_min_ms", 100),
        ("/proc/sys/kernel/numa_balancing", 1),
    )
    with setting(*values), observer.target() as target:
        target.do("write", 0, 1000)
        target.move(0, 1000, SLOW)
        observer.drain_faults(target)
        repeat_until(
            lambda: any(row["deed"] == "numa_misplaced" for row in observer.rows(target)),
            lambda: target.do("spin", 1000, 500),
        )
        return observer.report(target)


def collapse(observer: Observer) -> dict[str, Any]:
    """khugepaged collapses small pages into huge pages."""
    values = (
        (KHUGEPAGED / "scan_sleep_millisecs", 10),
        (KHUGEPAGED / "pages_to_scan", 65536),
    )
    with setting(*values), observer.target() as target:
        target.do("write", 0, 4096)
        target.do("huge")
        repeat_until(
            lambda: any(row["deed"] == "collapse" for row in observer.rows(target)),
            lambda: time.sleep(0.5),
        )
        return observer.report(target)


def motion(observer: Observer) -> dict[str, Any]:
    """The watched process writes its pages while another process moves them back and forth."""
    with observer.target() as target:
        target.do("write", 0, 256)
        mover = subprocess.Popen(
            [sys.executable, __file__, "shuttle", str(target.pid), str(target.address), "256"]
        )
        try:
            repeat_until(
                lambda: observer.probes.counters()["faults"][target.pid]["in_motion"] > 0,
                lambda: target.do("spin", 256, 500),
            )
        finally:
            mover.terminate()
            mover.wait()
        return observer.report(target)


SCENARIOS = (
    foreign_moves,
    reclaim,
    demotion,
    balancing,
    collapse,
    motion,
    kswapd,
)


def fill() -> None:
    """Allocate 64 MiB more for each line of standard input."""
    held = []
    while sys.stdin.readline():
        held.append(b"1" * (64 << 20))
        print(len(held), flush=True)


def main() -> None:
    """Run all scenarios."""
    observer = Observer()
    report: dict[str, Any] = {"notes": observer.probes.notes}
    quiet = (
        ("/proc/sys/kernel/numa_balancing", 0),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
    )
    with setting(*quiet):
        for scenario in SCENARIOS:
            report[scenario.__name__] = scenario(observer)
    report["dropped"] = observer.probes.counters()["dropped"]
    observer.probes.close()
    print(json.dumps(report))


def disturb(verb: str, pid: int, address: int, pages: int, node: int = FAST) -> None:
    """Disturb pages of the watched process, from another process."""
    addresses = page_addresses(address, pages * PAGE)
    if verb == "move":
        move_pages(pid, addresses, node)
    elif verb == "shuttle":
        while True:
            for place in (SLOW, FAST):
                move_pages(pid, addresses, place)
    elif verb == "page_out":
        vector = (ctypes.c_uint64 * 2)(address, pages * PAGE)
        pidfd = os.pidfd_open(pid)
        done = libc.syscall(PROCESS_MADVISE, pidfd, vector, 1, MADV_PAGEOUT, 0)
        assert done == pages * PAGE, ctypes.get_errno()


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        fill()
    elif sys.argv[1:] and sys.argv[1] in ("move", "shuttle", "page_out"):
        disturb(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        main()
