# SPDX-License-Identifier: Apache-2.0
"""Others move and take a watched process's pages; prints what the probes saw, as one JSON object.

    PYTHONPATH=TREE python3 tests/vm/inside/disturbances.py

tests/vm/test_disturbances.py judges it. This process stands for the daemon; who
disturbs is the kernel, or a process of its own: this file with the argument
`move`, `page_out` or `fill`.
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
from tests.vm.ebpf_in_guest import PAGE, Target

FAST, SLOW = 0, 1
PROCESS_MADVISE, MADV_PAGEOUT = 440, 21
WAIT_S = 150.0
ZRAM = Path("/sys/block/zram0")
CGROUP = Path("/sys/fs/cgroup/disturbances")
NUMA = Path("/sys/kernel/debug/sched/numa_balancing")
KHUGEPAGED = Path("/sys/kernel/mm/transparent_hugepage/khugepaged")

libc = ctypes.CDLL(None, use_errno=True)


class Stage:
    """The probes, and one watched process at a time."""

    def __init__(self) -> None:
        self.probes = EbpfProbes()
        self.probes.start(280)

    @contextmanager
    def target(self) -> Iterator[Target]:
        """A process that is watched and whose faults are recorded."""
        target = Target()
        self.probes.watch(target.pid)
        self.probes.record(target.pid)
        try:
            yield target
        finally:
            self.probes.unwatch(target.pid)
            target.end()

    def rows(self, target: Target) -> list[Disturbance]:
        """What was done to it so far."""
        return self.probes.counters()["disturbances"][target.pid]

    def found(self, target: Target) -> dict[str, int]:
        """Records so far of what the kernel found in faults of the region, by kind."""
        records = self.probes.drain()
        inside = (records["address"] >= target.address) & (
            records["address"] < target.address + 4096 * PAGE
        )
        kinds = records["kind"][inside].tolist()
        return {kind: kinds.count(number) for number, kind in enumerate(FAULT_KINDS)}

    def report(self, target: Target) -> dict[str, Any]:
        """Rows, their words, and faults as counted and as recorded in the region."""
        rows = self.rows(target)
        return {
            "rows": rows,
            "words": in_words(rows),
            "faults": self.probes.counters()["faults"][target.pid],
            "found": self.found(target),
        }


def helper(*arguments: object) -> None:
    """Run this file as another process."""
    subprocess.run([sys.executable, __file__, *map(str, arguments)], check=True)


def until(condition: Callable[[], bool], act: Callable[[], object]) -> bool:
    """Act until the condition holds, for so long at most."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        act()
    return True


def chosen(text: str) -> str:
    """What to write to a file that reads like this; some show all choices, one of them [so]."""
    return text.partition("[")[2].partition("]")[0] or text.strip()


@contextmanager
def setting(*values: tuple[Path | str, object]) -> Iterator[None]:
    """Files of the kernel's that hold other values meanwhile."""
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
    """Swap in memory: what goes there leaves its page at once, for no disk has to be waited for."""
    with udev_at_rest():
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
def udev_at_rest() -> Iterator[None]:
    """It looks into each disk that somebody has closed, and one that is open can't be removed."""
    subprocess.run(["udevadm", "control", "--stop-exec-queue"], check=True)
    try:
        yield
    finally:
        subprocess.run(["udevadm", "control", "--start-exec-queue"], check=True)


class Filler:
    """Another process that takes memory of the fast node and gives all back at its end."""

    def __init__(self) -> None:
        # Bound to the node: others take from the next before kswapd is asked to make room on one.
        command = ["numactl", f"--membind={FAST}", sys.executable, __file__, "fill"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def take_more(self) -> None:
        """Take 64 MiB more."""
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


def daemon_and_stranger(stage: Stage) -> dict[str, Any]:
    """Moves of this process, then of another, some pages of which are held fast; then of a tool."""
    with stage.target() as target:
        target.do("write", 0, 600)
        target.move(0, 300, SLOW)
        own = stage.rows(target)
        target.do("pin", 300, 308)
        helper("move", target.pid, target.address + 300 * PAGE, 300, SLOW)
        report = stage.report(target)
        subprocess.run(["migratepages", str(target.pid), str(SLOW), str(FAST)], check=True)
        return {"own": own, **report, "after_tool": stage.rows(target)}


def reclaim(stage: Stage) -> dict[str, Any]:
    """Another process has pages swapped out, which the owner then reads again."""
    with swap(64), setting(("/proc/sys/vm/page-cluster", 0)), stage.target() as target:
        target.do("write", 0, 500)
        stage.found(target)
        helper("page_out", target.pid, target.address, 500)
        rows = stage.rows(target)
        target.do("read", 0, 400)
        return {**stage.report(target), "rows": rows}


def demotion(stage: Stage) -> dict[str, Any]:
    """Somebody has a control group reclaimed while the kernel may demote."""
    CGROUP.mkdir()
    try:
        demote = ("/sys/kernel/mm/numa/demotion_enabled", "true")
        with setting(demote), stage.target() as target:
            (CGROUP / "cgroup.procs").write_text(str(target.pid))
            target.do("write", 0, 4000)
            # fails where less than that could be reclaimed
            script = f"echo 8M > {CGROUP}/memory.reclaim"
            subprocess.run(["sh", "-c", script], stderr=subprocess.DEVNULL)
            return stage.report(target)
    finally:
        CGROUP.rmdir()


def kswapd(stage: Stage) -> dict[str, Any]:
    """The fast node fills up, and the kernel's own thread makes room on it."""
    values = (
        ("/sys/kernel/mm/numa/demotion_enabled", "true"),
        ("/proc/sys/vm/watermark_scale_factor", 500),
    )
    with setting(*values), stage.target() as target, Filler() as filler:
        target.do("write", 0, 4000)

        def press() -> None:
            # never so far that somebody has to be killed for memory
            if free_bytes(FAST) + free_bytes(SLOW) > 512 << 20:
                filler.take_more()
            else:
                time.sleep(0.5)

        until(lambda: any("kswapd" in row["by"] for row in stage.rows(target)), press)
        return stage.report(target)


def balancing(stage: Stage) -> dict[str, Any]:
    """NUMA balancing finds out that pages are used from the fast node, and brings them there."""
    values = (
        (NUMA / "scan_delay_ms", 100),
        (NUMA / "scan_period_min_ms", 100),
        ("/proc/sys/kernel/numa_balancing", 1),
    )
    with setting(*values), stage.target() as target:
        target.do("write", 0, 1000)
        target.move(0, 1000, SLOW)
        stage.found(target)
        until(
            lambda: any(row["deed"] == "numa_misplaced" for row in stage.rows(target)),
            lambda: target.do("spin", 1000, 500),
        )
        return stage.report(target)


def collapse(stage: Stage) -> dict[str, Any]:
    """khugepaged makes huge pages of small ones."""
    values = (
        (KHUGEPAGED / "scan_sleep_millisecs", 10),
        (KHUGEPAGED / "pages_to_scan", 65536),
    )
    with setting(*values), stage.target() as target:
        target.do("write", 0, 4096)
        target.do("huge")
        until(
            lambda: any(row["deed"] == "collapse" for row in stage.rows(target)),
            lambda: time.sleep(0.5),
        )
        return stage.report(target)


def motion(stage: Stage) -> dict[str, Any]:
    """Pages are written while another process moves them back and forth."""
    with stage.target() as target:
        target.do("write", 0, 256)
        mover = subprocess.Popen(
            [sys.executable, __file__, "shuttle", str(target.pid), str(target.address), "256"]
        )
        try:
            until(
                lambda: stage.probes.counters()["faults"][target.pid]["in_motion"] > 0,
                lambda: target.do("spin", 256, 500),
            )
        finally:
            mover.terminate()
            mover.wait()
        return stage.report(target)


STAGES = (
    daemon_and_stranger,
    reclaim,
    demotion,
    balancing,
    collapse,
    motion,
    kswapd,
)


def fill() -> None:
    """Take 64 MiB more for each line of standard input."""
    held = []
    while sys.stdin.readline():
        held.append(b"1" * (64 << 20))
        print(len(held), flush=True)


def main() -> None:
    """All stages."""
    stage = Stage()
    report: dict[str, Any] = {"notes": stage.probes.notes}
    quiet = (
        ("/proc/sys/kernel/numa_balancing", 0),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "madvise"),
    )
    with setting(*quiet):
        for act in STAGES:
            report[act.__name__] = act(stage)
    report["dropped"] = stage.probes.counters()["dropped"]
    stage.probes.close()
    print(json.dumps(report))


def disturb(verb: str, pid: int, address: int, pages: int, node: int = FAST) -> None:
    """What another process does to pages of the watched one."""
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
