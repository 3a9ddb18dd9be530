# SPDX-License-Identifier: Apache-2.0
"""Measures the bandwidth that a series of batches (pending.py) reaches."""

from __future__ import annotations

import time

from sentineld.migrate.ledger import Ledger
from sentineld.migrate.process_memory import Memory
from sentineld.model.arrays import Table

PACED_SHARE = 0.5
"""A batch counts as a measurement if it moves at least this share of Memory.ahead_pages. In a
smaller batch, the overhead of the call takes too large a part of the time. Moves on emulated tiers
have no such overhead. There, a batch also counts if it moves at least this share of the plan's
largest move."""


class Pace:
    """Measures the bandwidth of a series of batches that follow each other without a pause.

    The measured time includes the time between two batches, because plans must assume the bandwidth
    that a series of moves reaches.
    """

    def __init__(self, ledger: Ledger, memory: Memory, moves: Table, page_bytes: int) -> None:
        """ledger: counts the measurements. moves: the plan's moves (MOVE_DTYPE)."""
        size_bytes = memory.ahead_pages * page_bytes
        if memory.exact and len(moves):
            size_bytes = min(size_bytes, int(moves["bytes"].max()))
        self._bytes_min = max(PACED_SHARE * size_bytes, 1)
        self._ledger = ledger
        self._measures = memory.waits
        self._began_ns = self._moved_bytes = 0

    def begin(self) -> None:
        """Begin a series."""
        self._began_ns, self._moved_bytes = time.monotonic_ns(), 0

    def batch(self, moved_bytes: int, interrupted: bool) -> None:
        """Count a batch of the series. A small batch that was interrupted is measured together with
        the next one."""
        self._moved_bytes += moved_bytes
        large = self._moved_bytes >= self._bytes_min
        if large and self._measures:
            self._ledger.paced(self._moved_bytes, time.monotonic_ns() - self._began_ns)
        if large or not interrupted:
            self.begin()
