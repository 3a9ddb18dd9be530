# SPDX-License-Identifier: Apache-2.0
"""Which pages the records of the kernel module's access log represent."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.ranges import ranges
from sentineld.model.records import NO_ACCESS, Records


def pages_represented(samples: Records) -> Integers:
    """(N,): the number of pages that each SAMPLE_DTYPE record represents."""
    counts: Integers = samples["more_pages"].astype(np.int64) + 1
    return counts


def sampled_pages(samples: Records) -> tuple[Integers, Integers]:
    """The pages that SAMPLE_DTYPE records represent: for each page, the row of its record and the
    page number. A huge page has one record, which represents all its small pages."""
    counts = pages_represented(samples)
    rows = np.repeat(np.arange(len(samples)), counts)
    return rows, ranges(samples["page"].astype(np.int64), counts)


def sampled_page_count(samples: Records) -> int:
    """Number of pages represented by the SAMPLE_DTYPE records that are accesses, plus one for each
    other record."""
    access = (samples["flags"] & NO_ACCESS) == 0
    return int(np.where(access, pages_represented(samples), 1).sum())
