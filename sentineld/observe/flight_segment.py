# SPDX-License-Identifier: Apache-2.0
"""The batch of pages in flight on emulated tiers, as the daemon publishes it to the process."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SEQUENCE_MASK = 0xFFFFFFFFFFFFFFFF


class FlightSegment:
    """The part of a residency segment (residency_segment.py) in which the daemon describes the
    batch that it moves; see struct sentinel_flight. The process updates the residency map's entries
    for the batch's pages as these pages arrive. Only one thread may call begin() and end()."""

    def __init__(self, words: npt.NDArray[np.void]) -> None:
        """words: one row of FLIGHT_DTYPE, in shared memory."""
        self._use(words)
        # Make the sequence number even: it is odd if an earlier daemon was killed during a change.
        # Later changes increment `_count` and store it in the shared word. They never read the word
        # again, because the process can write any value into it.
        self._count = int(words["sequence"][0]) + 1 & ~1

    def close(self) -> None:
        """Stop using the shared memory."""
        self._use(self.words.copy())

    def begin(
        self,
        ranges: Sequence[tuple[int, int, int]],
        node: int,
        begin_ns: int,
        page_ns: float,
    ) -> None:
        """Publish a batch. Its first page begins to move at begin_ns (CLOCK_MONOTONIC).

        ranges: (first page, number of pages, 0 for the arena or 1 for the heap), at most
            FLIGHT_RANGES of them, in the order in which the pages move.
        page_ns: time to move a page.
        """
        self._change()
        self._limit[0] = sum(pages for _, pages, _ in ranges)
        self._fixed[0] = (max(begin_ns, 0), math.ceil(1000 * page_ns), len(ranges), node)
        self._ranges[: len(ranges)] = ranges
        self._change()

    def end(self, arrived: int) -> None:
        """End the batch: only its first `arrived` pages arrive."""
        self._limit[0] = arrived

    def _use(self, words: npt.NDArray[np.void]) -> None:
        self.words = words
        self._sequence, self._limit = words["sequence"], words["limit"]
        self._fixed = words[["begin_ns", "page_ps", "count", "node"]]
        self._ranges = words["ranges"][0]

    def _change(self) -> None:
        # The store to the sequence number and the stores to the other words are separate operations
        # of the interpreter, and x86 does not reorder stores. So the process sees them in program
        # order.
        self._count = self._count + 1 & SEQUENCE_MASK
        self._sequence[0] = self._count
