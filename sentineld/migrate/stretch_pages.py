# SPDX-License-Identifier: Apache-2.0
"""The arena pages that are born or dropped in any of a few consecutive stretches.

In one stretch, most pages of the arena are neither born nor dropped. So the peak of fast memory in
a stretch is computed from the few pages that are born or dropped, and from the number of all other
fast pages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.migrate.page_set import PageSet
from sentineld.migrate.pending import Pages
from sentineld.migrate.residency_map import ABSENT, Nodes

Event = tuple[int, slice]
"""(node, pages) for a birth, (ABSENT, pages) for a drop."""


class StretchPages:
    """Assigns row numbers to the arena pages that are born or dropped in given stretches.

    These pages, in the order of the arena, are the rows of a compact table. All other pages have no
    row.
    """

    def __init__(self, stretches: Sequence[Sequence[Event]]) -> None:
        """stretches: the events of each stretch, in order, with page numbers of the arena."""
        self.pages = PageSet(pages for events in stretches for _, pages in events)
        lengths = self.pages.stops - self.pages.starts
        # The table contains the ranges of `pages` one after the other. So the row of a page is its
        # number in the arena minus the shift of the range that contains it.
        self._shift = self.pages.starts - (np.cumsum(lengths) - lengths)
        self.stretches = [
            [(node, self._rows_of(pages)) for node, pages in events] for events in stretches
        ]
        """The events of each stretch, in order, with rows of the table instead of page numbers."""
        self.rising = [up_to_last_birth(events) for events in self.stretches]
        """The same without the drops after the last birth of the stretch. They do not change the
        peak of the stretch."""

    def take(self, nodes: Nodes) -> Nodes:
        """A copy of the nodes of the table's pages. nodes: the nodes of all pages of the arena."""
        ranges = self.pages.ranges
        if len(ranges) == 1:
            return nodes[ranges[0]].copy()
        return np.concatenate([nodes[:0], *(nodes[pages] for pages in ranges)])

    def rows(self, pages: Pages) -> Pages:
        """The rows of these pages, which must be in the table."""
        found: Pages = pages - self._shift[self.pages.stops.searchsorted(pages, "right")]
        return found

    def _rows_of(self, pages: slice) -> slice:
        if pages.start == pages.stop:
            return slice(0, 0)
        shift = int(self._shift[self.pages.stops.searchsorted(pages.start, "right")])
        return slice(pages.start - shift, pages.stop - shift)


def up_to_last_birth(events: list[Event]) -> list[Event]:
    """The events of a stretch without the drops after its last birth."""
    births = [at for at, (node, _) in enumerate(events) if node != ABSENT]
    return events[: births[-1] + 1] if births else []
