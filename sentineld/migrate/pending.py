# SPDX-License-Identifier: Apache-2.0
"""A queued move, and a batch of pages for one move_pages call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sentineld.model.plan import Space

Pages = npt.NDArray[np.int64]
"""Page indices within a space."""


def no_pages() -> Pages:
    """An empty set of pages."""
    return np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class PageRange:
    """A range of pages of one space; offset and bytes are multiples of the page size."""

    space: Space
    offset: int
    bytes: int

    def covers(self, other: PageRange) -> bool:
        """Whether the other range lies wholly within this one."""
        return (
            self.space == other.space
            and self.offset <= other.offset
            and other.offset + other.bytes <= self.offset + self.bytes
        )

    def overlaps(self, other: PageRange) -> bool:
        """Whether the two ranges have a page in common."""
        return (
            self.space == other.space
            and self.offset < other.offset + other.bytes
            and other.offset < self.offset + self.bytes
        )


@dataclass(eq=False)
class Pending(PageRange):
    """A queued move, which may have been carried out in part. due, deadline, expiry, stalls,
    yields: see move_queue.Span."""

    tier: int
    due: int
    deadline: int
    expiry: int
    reason: str
    """The origin of the move, as in ledger.Entry.reason: "plan", "heal" or "initial"."""
    stalls: bool = False
    yields: bool = False
    late: bool = False
    """Whether some of the move's pages were, or are about to be, moved after the deadline."""
    counted_late: bool = False
    """Whether the ledger has counted the move as late."""
    moved_bytes: int = 0
    tries: int = 0
    """Number of times that all stuck pages were tried again."""
    stuck: Pages = field(default_factory=no_pages)
    """Pages that a move_pages call did not move."""
    why: str = "busy"
    """Why the kernel did not move the stuck pages the last time."""


@dataclass(frozen=True)
class Batch:
    """Pages to move to one tier in one move_pages call. `parts` has (move, some of its pages) for
    each move, in the order of the queue."""

    tier: int
    parts: tuple[tuple[Pending, Pages], ...]
    ends_move: bool = False
    """Whether the batch contains all pages of its last move that are still to be tried."""

    @property
    def pages(self) -> int:
        """Number of pages."""
        return sum(len(pages) for _, pages in self.parts)

    def clipped(self, limit: int) -> Batch:
        """The batch's first pages, at most limit of them; limit is at least 1."""
        if self.pages <= limit:
            return self
        parts: list[tuple[Pending, Pages]] = []
        for move, pages in self.parts:
            if limit > 0:
                parts.append((move, pages[:limit]))
                limit -= len(pages)
        return Batch(self.tier, tuple(parts), ends_move=limit == 0)
