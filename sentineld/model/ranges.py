# SPDX-License-Identifier: Apache-2.0
"""Many ranges of integers as one array."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers


def ranges(first: Integers, counts: Integers) -> Integers:
    """Concatenate the ranges first[i] .. first[i] + counts[i] - 1."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Integers = np.arange(total) + np.repeat(first - (ends - counts), counts)
    return found
