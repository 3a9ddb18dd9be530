# SPDX-License-Identifier: Apache-2.0
"""bench-pager: how fast the pager moves pages, and how much CPU time it takes, compared with plain
direct I/O on the same disk.

The pager evicts all pages of a region, fetches them, and then evicts one half of the region while
it fetches the other half. Between these transfers, threads use plain direct I/O to write, to read,
and to do both at the same time; each time they transfer as many bytes as the pager.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.migrate.disk_speed import REQUEST_BYTES, REQUESTS
from sentineld.migrate.io_buffers import io_buffers
from sentineld.migrate.paging_file import open_paging_file
from tests.bench.pager_figures import summarise, text
from tests.bench.results import exit_status, say, write
from tests.unit.shim.harness import compile_harness
from tests.unit.shim.paged import PAGE, Paged, load, pager_problem

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "bench" / "pager.json"
REGION_BYTES = 1 << 30
SPARE_BYTES = 64 << 20
"""Part of the pager's budget beyond the pages that are in memory: frames for pages that are being
written or read, and the frames that fetches leave free for page faults."""
BYTES = {
    "write": (REGION_BYTES, 0),
    "read": (0, REGION_BYTES),
    "both": (REGION_BYTES // 2, REGION_BYTES // 2),
}
"""Bytes (written, read) by each transfer."""

Json = dict[str, Any]


class Plain:
    """Threads that read and write a file with direct I/O, in requests of REQUEST_BYTES."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._file = open_paging_file(folder, REGION_BYTES)
        ending.callback(os.close, self._file)
        self._buffers = io_buffers(2 * REQUESTS, REQUEST_BYTES)
        for buffer in self._buffers:
            buffer[:] = os.urandom(REQUEST_BYTES)

    def write(self) -> None:
        """Write the file."""
        self._transfer(os.pwrite, 0, REGION_BYTES, self._buffers[:REQUESTS])

    def read(self) -> None:
        """Read the file."""
        self._transfer(_read, 0, REGION_BYTES, self._buffers[:REQUESTS])

    def both(self) -> None:
        """Write one half of the file and read the other half, with REQUESTS threads for each."""
        half = REGION_BYTES // 2
        with ThreadPoolExecutor(1) as writer:
            written = writer.submit(self._transfer, os.pwrite, 0, half, self._buffers[:REQUESTS])
            self._transfer(_read, half, REGION_BYTES, self._buffers[REQUESTS:])
            written.result()

    def _transfer(
        self, request: Callable[..., int], begin: int, end: int, buffers: list[memoryview]
    ) -> None:
        def run(at: int) -> int:
            return request(self._file, buffers[at // REQUEST_BYTES % len(buffers)], at)

        with ThreadPoolExecutor(len(buffers)) as pool:
            done = sum(pool.map(run, range(begin, end, REQUEST_BYTES)))
        if done != end - begin:
            raise RuntimeError(f"{done} of {end - begin} bytes were transferred")


def _read(file: int, buffer: memoryview, at: int) -> int:
    return os.preadv(file, [buffer], at)


class Pager:
    """A region whose pages the pager evicts and fetches."""

    def __init__(self, library: ctypes.CDLL, folder: Path, ending: ExitStack) -> None:
        self._pages = REGION_BYTES // PAGE
        file_pages = 2 * self._pages
        file = open_paging_file(folder, file_pages * PAGE)
        ending.callback(os.close, file)
        self._notify = os.eventfd(0)
        ending.callback(os.close, self._notify)
        self._paged = Paged(
            library,
            file,
            file_pages,
            self._pages,
            2 * self._pages,
            self._pages,
            REQUESTS,
            self._notify,
        )
        ending.callback(self._paged.stop)
        words = self._paged.words
        words[:] = np.random.default_rng(1).integers(0, 1 << 63, words.shape, words.dtype)

    def prepare(self) -> None:
        """Fetch all pages and change each, so that the next eviction writes it."""
        self._set_budget(self._pages)
        self.read()
        self._paged.words[:, 0] += np.uint64(1)

    def write(self) -> None:
        """Evict all pages."""
        self._move(evict=(0, self._pages), fetch=(0, 0))

    def read(self) -> None:
        """Fetch all pages."""
        self._move(evict=(0, 0), fetch=(0, self._pages))

    def prepare_both(self) -> None:
        """Evict the second half of the region, and reduce the budget to half of the region."""
        half = self._pages // 2
        self.prepare()
        self._move(evict=(half, half), fetch=(0, 0))
        self._set_budget(half)

    def both(self) -> None:
        """Evict the first half of the region while the second half is fetched."""
        half = self._pages // 2
        self._move(evict=(0, half), fetch=(half, half))

    def _set_budget(self, resident_pages: int) -> None:
        self._paged.set_budget(resident_pages + SPARE_BYTES // PAGE)

    def transferred(self) -> tuple[int, int]:
        """Bytes (written, read) by the pager so far."""
        counts = self._paged.counts()
        return counts.bytes_written, counts.bytes_read

    def _move(self, evict: tuple[int, int], fetch: tuple[int, int]) -> None:
        """Evict and fetch pages; each argument is (first page, number of pages). If the pager does
        not take all pages at once, waits for its signal that it can take more, and passes it the
        remaining ones, as the shim does."""
        (out, out_left), (into, into_left) = evict, fetch
        while out_left or into_left:
            if out_left:
                done = self._paged.evict_on(out, out_left)
                out, out_left = out + done, out_left - done
            if into_left:
                done = self._paged.fetch(into, into_left)
                into, into_left = into + done, into_left - done
            if out_left or into_left:
                os.eventfd_read(self._notify)
        self._paged.settle()


def timed(transfer: Callable[[], None]) -> Json:
    """Time a transfer: the elapsed seconds and the CPU seconds of this process."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    transfer()
    return {
        "seconds": time.perf_counter() - began_s,
        "cpu_seconds": time.process_time() - began_cpu_s,
    }


def paged(pager: Pager, name: str) -> Json:
    """Time one of the pager's transfers. Raises RuntimeError if the numbers of bytes transferred
    differ from BYTES."""
    if name == "both":
        pager.prepare_both()
    elif name == "write":
        pager.prepare()
    before = pager.transferred()
    found = timed(getattr(pager, name))
    moved = tuple(now - then for now, then in zip(pager.transferred(), before, strict=True))
    if moved != BYTES[name]:
        raise RuntimeError(f"{name}: the pager wrote {moved[0]} bytes and read {moved[1]}")
    return found


def measure(folder: Path, rounds: int) -> list[dict[str, Json]]:
    """Measure plain I/O and the pager alternately. The first round, in which the files' blocks are
    written for the first time, is not part of the result."""
    found = []
    with ExitStack() as ending:
        place = Path(ending.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        compile_harness(place / "pager.so", "-O2")
        plain = Plain(place, ending)
        pager = Pager(load(place / "pager.so"), place, ending)
        for number in range(rounds + 1):
            found.append(
                {
                    name: {"plain": timed(getattr(plain, name)), "pager": paged(pager, name)}
                    for name in BYTES
                }
            )
            say(f"round {number} of {rounds}")
    return found[1:]


def main() -> int:
    """Measure, write the result and print a table."""
    parser = argparse.ArgumentParser(prog="tests.bench.pager", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build", help="folder on the disk to use"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    problem = pager_problem()
    if problem:
        print(f"bench-pager: {problem}", file=sys.stderr)
        return 2
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rounds = measure(arguments.folder, arguments.rounds)
    found = summarise(rounds, REGION_BYTES)
    write(arguments.output, {**found, "raw": rounds})
    print(text(found))
    return exit_status(found)


if __name__ == "__main__":
    sys.exit(main())
