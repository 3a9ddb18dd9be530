# SPDX-License-Identifier: Apache-2.0
"""Measure a node's bandwidth for reads, writes and random reads, from this process."""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.migrate.scratch import check_on_node, scratch_on

LINE_BYTES = 64
"""Bytes of a random access: a cache line."""

ROUNDS = 5
"""Number of rounds; the result is the rounds' median."""

RANDOM_SHARE = 8
"""A round reads one in RANDOM_SHARE cache lines, in random order."""


@dataclass(frozen=True)
class NodeRates:
    """Bandwidth of a node, summed over all threads."""

    node: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    random_bytes_per_s: float
    """Bandwidth of random reads of LINE_BYTES each."""


def threads_allowed() -> int:
    """Number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def node_rates(node: int, size_bytes: int, threads: int, alone: bool = False) -> NodeRates:
    """Measure a node's bandwidth on size_bytes of its memory; each thread uses one part.

    size_bytes: much more than the caches hold; otherwise the caches are measured instead.
    alone: the machine has no other node, so mbind is not needed.

    Raises SentinelError if the kernel refuses mbind or the node has no room.
    """
    with (
        scratch_on(None if alone else node, size_bytes) as scratch,
        ThreadPoolExecutor(threads) as pool,
    ):
        if not alone:
            check_on_node(scratch, node)
        parts = np.array_split(scratch.words, threads)
        lines = [_random_lines(len(part)) for part in parts]

        def measured(works: list[Callable[[], object]], moved_bytes: int) -> float:
            rates = []
            for _ in range(ROUNDS):
                began_ns = time.perf_counter_ns()
                for waiting in [pool.submit(work) for work in works]:
                    waiting.result()
                rates.append(moved_bytes * 1e9 / max(time.perf_counter_ns() - began_ns, 1))
            return statistics.median(rates)

        write = measured([_writing(part) for part in parts], scratch.bytes)
        read = measured([part.max for part in parts], scratch.bytes)
        at_random = measured(
            [_reading(part, places) for part, places in zip(parts, lines, strict=True)],
            LINE_BYTES * sum(map(len, lines)),
        )
        del parts
    return NodeRates(node, read, write, at_random)


def _writing(part: npt.NDArray[np.uint64]) -> Callable[[], object]:
    """Return a function that fills the part with libc's memset, which runs without the GIL and
    bypasses the caches when that is faster."""
    address, size = part.ctypes.data, part.nbytes
    return lambda: ctypes.memset(address, 1, size)


def _reading(part: npt.NDArray[np.uint64], places: npt.NDArray[np.int64]) -> Callable[[], object]:
    return lambda: part.take(places)


def _random_lines(words: int) -> npt.NDArray[np.int64]:
    """Indices of words in distinct cache lines, in random order."""
    each = LINE_BYTES // 8
    count = max(words // each // RANDOM_SHARE, 1)
    order = np.random.default_rng(1).permutation(max(words // each, 1))[:count]
    return order.astype(np.int64) * each
