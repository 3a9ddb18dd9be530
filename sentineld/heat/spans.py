# SPDX-License-Identifier: Apache-2.0
"""One numbering of pages for the address spaces of all processes of a session.

Each address space of a session has a separate span of numbers, so the units of all processes can be
sorted by temperature in one list. After an exec(), a process has another address space, and so
another span. A span is used again only after all others have been used: by then, no unit has a
number of its earlier address space.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers, Table

SPAN_PAGES = 1 << 37
"""Number of page numbers in a span: more than any address space has pages, and a multiple of each
unit size."""
SPANS = 1 << 25
"""Number of spans. All page numbers are less than 2^62, so they and their sums with sizes fit into
64 bits."""


def session_runs(runs: Table, span: int) -> Table:
    """A process's runs with the session's page numbers; PAGE_RUN_DTYPE."""
    found = runs.copy()
    found["page"] += span * SPAN_PAGES
    return found


def runs_by_span(runs: Table) -> list[tuple[int, Table]]:
    """For each span that the runs touch: the span, and its runs with the process's page numbers.
    The runs of a span keep their order; PAGE_RUN_DTYPE."""
    spans = runs["page"] // SPAN_PAGES
    found = []
    for span in np.unique(spans).tolist():
        own = runs[spans == span]
        own["page"] -= span * SPAN_PAGES
        found.append((span, own))
    return found


def split_pages(pages: Integers) -> tuple[Integers, Integers]:
    """Two arrays: for each page number of the session, its span and the process's page number."""
    return pages // SPAN_PAGES, pages % SPAN_PAGES
