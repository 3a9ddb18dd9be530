# SPDX-License-Identifier: Apache-2.0
"""The daemon's view of a process's pager: its counters, and the queues of the daemon's moves.

Both are in the process's residency segment (residency_segment.py). The process may write anything
into this segment at any time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.model import protocol
from sentineld.model.plan import Space

_SPACES = {Space.ARENA: 0, Space.HEAP: 1}  # sentinel_page_range.space


@dataclass(frozen=True)
class PagingCounts:
    """The pager's counters since its start; see struct pager_counts."""

    bytes_read: int
    """Bytes read from the file."""
    bytes_written: int
    """Bytes written to the file."""
    faults: int
    """Accesses to pages that were in the file, or were being fetched or evicted."""
    births_by_fault: int
    """Accesses to pages that had no frame and were not in the file."""
    clean_pages: int
    """Pages that left memory without being written, because they had not changed."""
    waits: int
    """The number of accesses in `births_by_fault` that waited for a page frame."""
    fault_reads: int
    """Reads of FAULT_BYTES (model/timing.py) made by the pager's thread that serves faults. A read
    is not counted if its fault also reads ahead (this affects the read's time), or if the read took
    longer than 50 ms. If several faults are raised at the same time, this thread makes only the
    read of the last fault. If no page frame is free, it makes no read. Other threads make the
    remaining reads."""
    fault_read_ns: int
    """Total time of the reads in fault_reads. The time of a read begins when the pager's thread has
    read the fault's event, and ends when the pages have arrived. It does not contain the time to
    wake the threads; see Tier.wake_ns."""
    overruns: int
    """Page frames taken beyond the budget, because no page could leave memory."""
    frames: int
    """Page frames that the pager holds now: those in use by pages or transfers, and free ones."""
    budget_pages: int
    file_bytes: int
    write_error: int
    """Negative errno of a failed write, or -ENOSPC if the file had no free page; 0: none. While it
    is not 0, no page is evicted."""
    evicted_pages: int
    """Pages whose eviction was begun by moves of the live layout. This and the next two values are
    counted since the residency segment was created."""
    fetched_pages: int
    """Pages whose fetch was begun by moves of the live layout."""
    late_moves: int
    """Late fetches of the live layout. A late fetch moved pages after its deadline, or was
    incomplete at the boundary at which it became obsolete (sentinel_move.end)."""


class PagingSegment:
    """The part of a residency segment that the pager and the daemon share."""

    def __init__(self, words: npt.NDArray[np.void]) -> None:
        """words: one row of PAGING_DTYPE, in shared memory."""
        self._words = words

    def close(self) -> None:
        """Stop using the shared memory. Counters then keep their values, and the pager does not see
        appended ranges."""
        self._words = self._words.copy()

    def counts(self) -> PagingCounts:
        """The counters now."""
        found = self._words[0]
        return PagingCounts(**{name: int(found[name]) for name in PagingCounts.__annotations__})

    def queued(self, evict: bool) -> int:
        """Number of queued ranges. The pager removes a range when the move of each of its pages has
        begun or is not necessary."""
        queue = self._words["evict" if evict else "fetch"][0]
        return int(queue["head"]) - int(queue["tail"]) & 0xFFFFFFFFFFFFFFFF

    def append(
        self, evict: bool, space: Space, ranges: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Append ranges of a space, each as (first page, number of pages), to a queue; returns the
        ranges for which the queue has no room."""
        queue = self._words["evict" if evict else "fetch"]
        head = int(queue["head"][0])
        room = max(protocol.QUEUE_RANGES - self.queued(evict), 0)
        for page, pages in ranges[:room]:
            queue["ranges"][0, head % protocol.QUEUE_RANGES] = (page, pages, _SPACES[space])
            head += 1
        # The pager reads the head before the ranges, so the head is stored after the ranges. The
        # stores are two operations of the interpreter, and x86 does not reorder stores.
        queue["head"][0] = head & 0xFFFFFFFFFFFFFFFF
        return ranges[room:]
