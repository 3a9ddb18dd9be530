# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays that describe many ranges of integers."""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Integers


def ranges(first: Integers, counts: Integers) -> Integers:
    """Concatenate the ranges first[i] .. first[i] + counts[i] - 1."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    found: Integers = np.arange(total) + np.repeat(first - (ends - counts), counts)
    return found


def union(first: Integers, past: Integers, gap: int = 0) -> tuple[Integers, Integers]:
    """The union of the ranges first[i] .. past[i] - 1 as disjoint ranges, in ascending order.

    Ranges with at most `gap` integers between them are joined.
    """
    if not len(first):
        return first, past
    order = np.argsort(first, kind="stable")
    first, past = first[order], np.maximum.accumulate(past[order])
    begins = np.flatnonzero(np.append(True, first[1:] > past[:-1] + gap))
    return first[begins], np.append(past[begins[1:] - 1], past[-1])


def covered(begin: Integers, end: Integers, disjoint: tuple[Integers, Integers]) -> Integers:
    """(N,): how many integers of each range begin[i] .. end[i] - 1 lie in the disjoint ranges.

    disjoint: (first, past) of the disjoint ranges, in ascending order, as from union().
    """
    first, past = disjoint
    before = np.append(0, np.cumsum(past - first))

    def up_to(number: Integers) -> Integers:
        index = np.searchsorted(first, number, side="right")
        whole: Integers = before[index]
        if not len(first):
            return whole
        inside = np.maximum(past[np.maximum(index - 1, 0)] - number, 0)
        return whole - np.where(index > 0, inside, 0)

    found: Integers = up_to(end) - up_to(begin)
    return found
