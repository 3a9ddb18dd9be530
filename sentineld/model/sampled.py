# SPDX-License-Identifier: Apache-2.0
"""The pages that records of the kernel module's access log represent."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.records import NO_ACCESS, Records


def sampled_pages(samples: Records) -> tuple[Integers, Integers]:
    """The pages that SAMPLE_DTYPE records represent: for each page, the row of its record and the
    page number. A huge page has one record, which represents all its small pages."""
    counts = samples["more_pages"].astype(np.int64) + 1
    rows = np.repeat(np.arange(len(samples)), counts)
    return rows, ranges(samples["page"].astype(np.int64), counts)


def sampled_page_count(samples: Records) -> int:
    """At least the number of pages that sampled_pages() returns for the accesses of these records.
    Other records count as one page."""
    accesses = samples[(samples["flags"] & NO_ACCESS) == 0]
    return len(samples) + int(accesses["more_pages"].sum(dtype=np.int64))


def ranges(first: Integers, counts: Integers) -> Integers:
    """Concatenate the ranges first[i] .. first[i] + counts[i] - 1."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Integers = np.arange(total) + np.repeat(first - (ends - counts), counts)
    return found
