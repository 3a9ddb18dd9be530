# SPDX-License-Identifier: Apache-2.0
"""A move under way, and a batch of pages for one call."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int64]
"""Page indices within a space."""


def no_pages() -> Pages:
    """An empty set of pages."""
    return np.zeros(0, dtype=np.int64)


@dataclass(eq=False)
class Pending:
    """A move under way. due, deadline and useful_until count boundaries since the first step.

    stuck: pages that a call has left where they were; tries: how often they all
    were tried again; why: what the kernel said of them last.
    """

    due: int
    deadline: int
    useful_until: int
    space: int
    tier: int
    offset: int
    bytes: int
    reason: str  # "plan" or "heal"
    late: bool = False
    moved_bytes: int = 0
    tries: int = 0
    stuck: Pages = field(default_factory=no_pages)
    why: str = "busy"

    def covers(self, other: Pending) -> bool:
        """Whether the other's range lies wholly within this one's."""
        return (
            self.space == other.space
            and self.offset <= other.offset
            and other.offset + other.bytes <= self.offset + self.bytes
        )

    def overlaps(self, other: Pending) -> bool:
        """Whether the two have a page in common."""
        return (
            self.space == other.space
            and self.offset < other.offset + other.bytes
            and other.offset < self.offset + self.bytes
        )


@dataclass(frozen=True)
class Batch:
    """Pages to move to one tier in one call; parts in the order of their moves."""

    tier: int
    parts: tuple[tuple[Pending, Pages], ...]

    @property
    def pages(self) -> int:
        """Number of pages."""
        return sum(len(pages) for _, pages in self.parts)

    def clipped(self, limit: int) -> Batch:
        """The batch's first pages, no more than limit (which is at least one)."""
        parts: list[tuple[Pending, Pages]] = []
        for move, pages in self.parts:
            if limit > 0:
                parts.append((move, pages[:limit]))
                limit -= len(pages)
        return Batch(self.tier, tuple(parts))
