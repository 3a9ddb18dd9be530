# SPDX-License-Identifier: Apache-2.0
"""A small process whose pages the mover moves.

Runs in the guest. It has steps, boundaries, births, drops and barriers. The program acts like the
shim towards the mover, but without torch: it publishes its position, waits at the boundaries in
WAITS (layout.py) until moves_done has reached this position, and allocates and frees the tensors
below. Each stretch checks the data of the tensors that it uses, and reports the fast bytes of the
process. It also reports how many pages of each of these tensors, except S, are slow. The table
shows what each stretch does with each tensor (-: nothing) and at which boundaries the tensor moves:

    stretch      0    1     2      3      4      5      6      7
    P (heap)    use  use   use    use    use    use    use    use    always fast
    Q (heap)     -    -     -      -     use     -      -      -     promoted at 3, demoted at 5
    A (arena)    -   birth  -      -      -      -   use+death -     demoted at 2, promoted at 5
    S (arena)   use  use   use    use    use    use    use    use    scratch, never dropped

Stretches 3 and 5 last until their promotions are finished.

Usage: stepper.py CONTROL STEPS. CONTROL is a file of 4096 bytes: position (u64 at 0), moves_done
(u64 at 8: the last position up to which all due demotions are complete), number of records read by
manage.py (u64 at 16). A stretch begins only after manage.py has read the previous stretch's record,
so an epoch is exactly one stretch.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time

import numpy as np
from layout import ARENA_PAGES, ARRIVALS, HEAP_PAGES, PAGE, STRETCHES, TENSORS, USES, WAITS

from sentineld.migrate.syscalls import page_addresses, prefer_node, query_pages

TIMEOUT_S = 60.0
"""Limit for a planned promotion or a barrier; far more than any guest needs."""


def anonymous(pages: int, node: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    prefer_node(address, pages * PAGE, node)
    return memory, address


class Stepper:
    def __init__(self, control: str, steps: int) -> None:
        file = os.open(control, os.O_RDWR)
        self.words = np.frombuffer(mmap.mmap(file, 4096), np.uint64)
        self.steps = steps
        self.spaces = {0: anonymous(ARENA_PAGES, 0), 1: anonymous(HEAP_PAGES, 1)}
        self.stamp: dict[str, int] = {}

    def bytes_of(self, name: str) -> np.ndarray:
        space, first, pages = TENSORS[name]
        return np.frombuffer(self.spaces[space][0], np.uint64, pages * 512, first * PAGE)

    def nodes_of(self, name: str) -> np.ndarray:
        space, first, pages = TENSORS[name]
        return query_pages(0, page_addresses(self.spaces[space][1] + first * PAGE, pages * PAGE))

    def fast_bytes(self) -> int:
        return sum(
            int(np.count_nonzero(query_pages(0, page_addresses(address, len(memory))) == 0)) * PAGE
            for memory, address in self.spaces.values()
        )

    def write(self, name: str, stamp: int) -> None:
        self.stamp[name] = stamp
        self.bytes_of(name)[:] = np.arange(len(self.bytes_of(name)), dtype=np.uint64) + stamp

    def check(self, name: str) -> None:
        words = self.bytes_of(name)
        expected = np.arange(len(words), dtype=np.uint64) + self.stamp[name]
        if not np.array_equal(words, expected):
            raise SystemExit(f"{name} lost data at words {np.flatnonzero(words != expected)[:4]}")

    def slow_pages(self, name: str) -> int:
        return int(np.count_nonzero(self.nodes_of(name) != 0))

    def wait_fast(self, name: str) -> None:
        """Wait until the tensor is fast. After a time-out, the next use reports slow pages."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.slow_pages(name) and time.monotonic() < deadline:
            time.sleep(0.02)

    def barrier(self, position: int) -> bool:
        deadline = time.monotonic() + TIMEOUT_S
        while int(self.words[1]) < position:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def stretch(self, step: int, boundary: int) -> None:
        position = step << 32 | boundary
        self.words[0] = position
        passed = self.barrier(position) if boundary in WAITS else True
        if boundary == 1:
            self.write("A", step + 7)
        self.write("S", position)
        slow = {name: self.slow_pages(name) for name in USES[boundary]}
        for name in (*USES[boundary], "S"):
            self.check(name)
            self.write(name, position + 1)
        if boundary in ARRIVALS:
            self.wait_fast(ARRIVALS[boundary])
        fast = self.fast_bytes()
        if boundary == 6:
            space, first, pages = TENSORS["A"]
            self.spaces[space][0].madvise(mmap.MADV_DONTNEED, first * PAGE, pages * PAGE)
        record = {"step": step, "boundary": boundary, "fast": fast, "slow": slow, "passed": passed}
        read_count = int(self.words[2])
        print(json.dumps(record), flush=True)
        while int(self.words[2]) == read_count:
            time.sleep(0.001)

    def run(self) -> None:
        for name in ("P", "Q"):
            self.write(name, 1)
        print(json.dumps({space: where[1] for space, where in self.spaces.items()}), flush=True)
        input()
        for step in range(1, self.steps + 1):
            for boundary in range(STRETCHES):
                self.stretch(step, boundary)
        print(json.dumps({"done": True}), flush=True)
        input()


Stepper(sys.argv[1], int(sys.argv[2])).run()
