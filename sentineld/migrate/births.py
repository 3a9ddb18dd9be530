# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a page birth (a page fault) in memory of this process."""

from __future__ import annotations

import ctypes
import errno
import mmap
import statistics
import time
from dataclasses import replace

from sentineld.migrate.scratch import Scratch, scratch_on
from sentineld.model.tiers import Tiers

MADV_POPULATE_WRITE = 23
"""The value since Linux 5.14 (include/uapi/asm-generic/mman-common.h); Python's mmap module has no
such constant."""

PIECE_BYTES = 8 << 20
"""Bytes that are dropped with one call and then populated with one call, as for a large tensor."""

SCRATCH_BYTES = 16 << 20
"""Bytes that a round touches. A round takes a few milliseconds."""

ROUNDS = 5
"""Number of rounds; the result is the rounds' median."""


def measure_births(tiers: Tiers) -> Tiers:
    """Return the tiers with the measured birth time, or unchanged if there is no free memory."""
    try:
        return replace(tiers, birth_ns_per_byte=birth_ns_per_byte(SCRATCH_BYTES))
    except OSError:
        return tiers


def birth_ns_per_byte(size_bytes: int) -> float:
    """Measure how much longer it takes to fill dropped pages than resident ones, per byte.

    The result is at least 0 and includes the time of the drop. The pages are not huge pages. They
    are populated as the shim populates the pages of a tensor: with one call, if the kernel supports
    it. Raises OSError if there is no memory.
    """
    with scratch_on(None, size_bytes) as scratch:
        size = scratch.bytes
        pieces = [(at, min(PIECE_BYTES, size - at)) for at in range(0, size, PIECE_BYTES)]
        longer_ns = [_longer_ns(scratch, pieces) for _ in range(ROUNDS)]
    return max(statistics.median(longer_ns), 0.0) / size


def _longer_ns(scratch: Scratch, pieces: list[tuple[int, int]]) -> int:
    memory, start = scratch.mapping, scratch.start
    for first, size in pieces:
        ctypes.memset(start + first, 1, size)
    found = 0
    for first, size in pieces:
        began_ns = time.perf_counter_ns()
        ctypes.memset(start + first, 1, size)
        kept_ns = time.perf_counter_ns() - began_ns
        began_ns = time.perf_counter_ns()
        memory.madvise(mmap.MADV_DONTNEED, first, size)
        _populate(memory, first, size)
        ctypes.memset(start + first, 1, size)
        found += time.perf_counter_ns() - began_ns - kept_ns
    return found


def _populate(memory: mmap.mmap, first: int, size: int) -> None:
    try:
        memory.madvise(MADV_POPULATE_WRITE, first, size)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: not supported; memset faults the pages in
            raise
