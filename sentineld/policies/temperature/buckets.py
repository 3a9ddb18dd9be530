# SPDX-License-Identifier: Apache-2.0
"""Buckets of pages with similar temperatures, and the hottest buckets that fit into fast memory.

The buckets are as wide as those of vTMM, a published system. history.py names the source of vTMM's
constants.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Floats, Integers

BUCKETS = 20
BUCKET_WIDTH = 5
"""Range of temperatures in a bucket. The last bucket also takes all higher temperatures."""


class HotSet(NamedTuple):
    """The buckets whose pages should be fast."""

    coldest: int  # the coldest hot bucket; the number of buckets if none is hot
    pages: float  # pages in all hot buckets


def bucket_of(temperature: Integers) -> Integers:
    """The bucket of each temperature, 0 to BUCKETS - 1."""
    return np.minimum(temperature // BUCKET_WIDTH, BUCKETS - 1)


def histogram(bucket: Integers, pages: Integers, buckets: int = BUCKETS) -> Floats:
    """(buckets,): number of pages in each bucket.

    bucket, pages: (N,), the bucket and the number of pages of each unit.
    """
    return np.bincount(bucket, pages, minlength=buckets).astype(np.float64)


def hottest_that_fit(counts: Floats, limit_pages: float, lowest: int = 1) -> HotSet:
    """The hottest buckets that fit into `limit_pages` pages, each as a whole.

    counts: pages in each bucket. lowest: the coldest bucket that may be hot. By default, bucket 0
    is never hot, because its pages are idle or almost idle.
    """
    coldest, taken = len(counts), 0.0
    while coldest > lowest and taken + counts[coldest - 1] <= limit_pages:
        coldest -= 1
        taken += float(counts[coldest])
    return HotSet(coldest, taken)
