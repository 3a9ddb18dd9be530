# SPDX-License-Identifier: Apache-2.0
"""Measure how fast a folder's disk writes and reads with O_DIRECT, which the pager uses, too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sentineld.base.errors import SentinelError
from sentineld.migrate.fault_time import measure_faults
from sentineld.migrate.io_buffers import io_buffers
from sentineld.migrate.paging_file import open_paging_file
from sentineld.model.timing import FAULT_BYTES

REQUEST_BYTES = 1 << 20
"""Bytes of one read or write. The pager's requests are smaller: REQUEST_PAGES in
shim/native/pager/pages.h."""
REQUESTS = 8
"""Number of reads or writes in flight, the same as in the pager (shim/native/paging.c)."""
SCRATCH_BYTES = 256 << 20


@dataclass(frozen=True)
class DiskRates:
    """Bandwidths of a disk, and the latency of a fault."""

    read_bytes_per_s: float
    write_bytes_per_s: float
    # Time of a fault that reads FAULT_BYTES, with no other read in flight; 0: unknown.
    fault_ns: float = 0.0
    wake_ns: float = 0.0  # see Tier

    def latency_ns(self, read_bytes_per_s: float) -> float:
        """Tier.read_latency_ns for a tier of this bandwidth; 0: unknown. If noise in the measured
        values makes the latency smaller than 1 ns, or negative, returns 1."""
        if not self.fault_ns:
            return 0.0
        return max(self.fault_ns - FAULT_BYTES * 1e9 / read_bytes_per_s, 1.0)


def measure_disk(folder: Path, scratch_bytes: int = SCRATCH_BYTES) -> DiskRates:
    """Measure the folder's disk by writing and reading an unnamed file in the folder.

    scratch_bytes: size of the file, a multiple of REQUEST_BYTES. Raises SentinelError if the file
    cannot be created or the disk cannot be measured.
    """
    file = open_paging_file(folder, scratch_bytes)
    buffers = io_buffers(REQUESTS, REQUEST_BYTES)
    for buffer in buffers:
        # Use random bytes: a disk can compress zeros, or not write them at all.
        buffer[:] = os.urandom(REQUEST_BYTES)

    def buffer_of(at: int) -> memoryview:
        return buffers[at // REQUEST_BYTES % REQUESTS]

    try:
        written = _bytes_per_s(lambda at: os.pwrite(file, buffer_of(at), at), scratch_bytes)
        read = _bytes_per_s(lambda at: os.preadv(file, [buffer_of(at)], at), scratch_bytes)
        fault = measure_faults(file, scratch_bytes)
    except OSError as error:
        raise SentinelError(
            "failed", f"the disk of {folder} cannot be measured: {error.strerror}"
        ) from None
    finally:
        os.close(file)
    return DiskRates(read, written, fault.ns, fault.wake_ns)


def _bytes_per_s(transfer: Callable[[int], int], scratch_bytes: int) -> float:
    with ThreadPoolExecutor(REQUESTS) as pool:
        began_ns = time.monotonic_ns()
        done = sum(pool.map(transfer, range(0, scratch_bytes, REQUEST_BYTES)))
        spent_ns = time.monotonic_ns() - began_ns
    return done * 1e9 / max(spent_ns, 1)
