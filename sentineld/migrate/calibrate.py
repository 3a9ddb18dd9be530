# SPDX-License-Identifier: Apache-2.0
"""Measure the migration bandwidth between the two fastest tiers with pages of this process."""

from __future__ import annotations

import logging
import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.migrate.node_capacity import Capacity
from sentineld.migrate.scratch import Scratch, scratch_on
from sentineld.migrate.syscalls import BATCH_PAGES, move_pages, page_addresses
from sentineld.model.tiers import Tiers

log = logging.getLogger(__name__)

SCRATCH_BYTES = 16 << 20
"""Moving these bytes to the other tier and back, ROUNDS times, takes one second at 100 MiB/s. A
guest whose CPUs QEMU emulates has about this bandwidth."""

SCRATCH_BYTES_MIN = BATCH_PAGES * mmap.PAGESIZE

ROUNDS = 3
"""Number of rounds; the result is the rounds' median, because other services that start with the
daemon may disturb a round."""


@dataclass(frozen=True)
class Rates:
    """Measured migration bandwidth in each direction."""

    demote_bytes_per_s: float
    promote_bytes_per_s: float


def measure(
    tiers: Tiers,
    scratch_bytes: int = SCRATCH_BYTES,
    batch_pages: int = BATCH_PAGES,
    clock_ns: Callable[[], int] = time.monotonic_ns,
) -> Rates:
    """Move a scratch mapping from the fastest tier to the next and back, batch_pages per call.

    The mapping is at most half as large as the free memory of either node. Raises SentinelError
    with code "failed" if there is no room or the pages do not move, or with code "not-permitted" if
    the kernel refuses mbind or the move.

    clock_ns: the clock that measures the moves.
    """
    capacity = Capacity(tiers)
    fast, fast_free = capacity.best_node(0)
    slow, slow_free = capacity.best_node(1)
    size = min(scratch_bytes, fast_free // 2, slow_free // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    if size < SCRATCH_BYTES_MIN:
        raise SentinelError(
            "failed",
            f"nodes {fast} and {slow} have no room to measure the migration bandwidth",
            "free some memory, or set tiers.migration_bytes_per_s in the config",
        )
    with scratch_on(fast, size) as scratch:
        rounds = [
            (
                _rate(scratch, slow, batch_pages, clock_ns),
                _rate(scratch, fast, batch_pages, clock_ns),
            )
            for _ in range(ROUNDS)
        ]
    demote, promote = zip(*rounds, strict=True)
    return Rates(statistics.median(demote), statistics.median(promote))


def measure_bytes_per_s(tiers: Tiers) -> Tiers:
    """Return the tiers with the slower direction's bandwidth. If measuring fails, logs the reason
    and returns the tiers unchanged."""
    try:
        rates = measure(tiers)
    except SentinelError as error:
        assumed = format_bytes(int(tiers.migration_bytes_per_s))
        log.warning("%s; plans assume a migration bandwidth of %s/s", error, assumed)
        return tiers
    slower = min(rates.demote_bytes_per_s, rates.promote_bytes_per_s)
    return replace(tiers, migration_bytes_per_s=slower)


def _rate(scratch: Scratch, node: int, batch_pages: int, clock_ns: Callable[[], int]) -> float:
    pages = page_addresses(scratch.start, scratch.bytes, mmap.PAGESIZE)
    began_ns = clock_ns()
    result = move_pages(0, pages, node, batch_pages)
    spent_ns = clock_ns() - began_ns
    moved_pages = int(np.count_nonzero(result.status == node))
    if moved_pages < len(pages) // 2:
        raise SentinelError(
            "failed",
            f"pages did not move to node {node} (errno {result.error})",
            "set tiers.migration_bytes_per_s in the config",
        )
    return moved_pages * mmap.PAGESIZE * 1e9 / max(spent_ns, 1)
