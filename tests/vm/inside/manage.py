# SPDX-License-Identifier: Apache-2.0
"""Runs the mover on stepper.py; prints one JSON object. Usage: manage.py STEPS [armed].

With "armed", the kernel module samples the process while its pages move, with one
epoch per stretch.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import numpy as np
from layout import ARENA_PAGES, HEAP_PAGES, PAGE, make_plan, make_step

from sentineld.host.tiers import discover
from sentineld.migrate.mover import Mover
from sentineld.migrate.ports import PlannedStep, ProcessPorts
from sentineld.migrate.process_memory import KernelMemory
from sentineld.model.plan import Space
from sentineld.observe.page_sampler import PageSampler


def arm(sampler: PageSampler, spaces: dict[Space, tuple[int, int]]) -> None:
    for start, size in spaces.values():
        sampler.add_range(start, size)
        sampler.arm(start, size)


def main(steps: int, armed: bool) -> None:
    descriptor, control = tempfile.mkstemp()
    os.truncate(descriptor, 4096)
    words = np.frombuffer(mmap.mmap(descriptor, 4096), np.uint64)
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("stepper.py")), control, str(steps)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    addresses = json.loads(process.stdout.readline())
    spaces = {
        Space.ARENA: (addresses["0"], ARENA_PAGES * PAGE),
        Space.HEAP: (addresses["1"], HEAP_PAGES * PAGE),
    }

    def publish(position: int) -> None:
        words[1] = position

    ended: list[str] = []
    gone = threading.Event()

    def on_end(why: str) -> None:
        ended.append(why)
        gone.set()

    tiers, plan = discover(), make_plan()
    mover = Mover(
        tiers,
        PlannedStep(plan, make_step()),
        ProcessPorts(
            pid=process.pid,
            memory=KernelMemory(process.pid, tiers),
            spaces=spaces,
            publish=publish,
            position=lambda: int(words[0]),
            ended=on_end,
        ),
        plan.budget_bytes,
    )
    sampler = PageSampler() if armed else None
    if sampler is not None:
        sampler.attach(process.pid)
        mover.watch(sampler, partial(arm, sampler, spaces))
    mover.enter()
    entered = mover.by_tier()
    mover.start(1 << 32)
    while not (words[1] or gone.wait(0.01)):
        pass  # wait until the mover has read residency, for which it disarms all pages
    process.stdin.write("\n")
    process.stdin.flush()
    records, samples = [], []
    for line in process.stdout:
        record = json.loads(line)
        if "done" in record:
            break
        records.append(record)
        if sampler is not None:
            sampler.begin_epoch()
            samples.append(sampler.drain())
        words[2] += np.uint64(1)
    stats = None
    if sampler is not None:
        stats = vars(sampler.stats())
        mover.unwatch(sampler.close)
    by_tier = mover.by_tier()
    process.stdin.write("\n")
    process.stdin.close()
    status = process.wait()
    mover.resume(int(words[0]))  # makes the mover access the exited process
    gone.wait(60)
    os.unlink(control)
    print(
        json.dumps(
            {
                "status": status,
                "entered": entered,
                "by_tier": by_tier,
                "records": records,
                "totals": {"/".join(entry): size for entry, size in mover.ledger.totals().items()},
                "steps": [vars(step) for step in mover.ledger.steps()],
                "samples": describe(np.concatenate(samples), spaces) if samples else None,
                "stats": stats,
                "ended": ended,
            }
        )
    )
    mover.stop()


def describe(samples: np.ndarray, spaces: dict[Space, tuple[int, int]]) -> dict[str, object]:
    """The number of access records, the number of distinct accessed pages by space, and the number
    of access records by node."""
    accesses = samples[(samples["flags"] & 128) == 0]
    nodes, counts = np.unique(accesses["node"], return_counts=True)
    return {
        "records": len(accesses),
        "pages": {
            space.name: len(np.unique(inside(accesses["page"], start, size)))
            for space, (start, size) in spaces.items()
        },
        "nodes": dict(zip(nodes.tolist(), counts.tolist(), strict=True)),
    }


def inside(pages: np.ndarray, start: int, size: int) -> np.ndarray:
    return pages[(pages >= start // PAGE) & (pages < (start + size) // PAGE)]


main(int(sys.argv[1]), sys.argv[2:] == ["armed"])
