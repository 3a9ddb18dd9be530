# SPDX-License-Identifier: Apache-2.0
"""A small credit for early moves, which breaks ties in a plan's linear program."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sentineld.model.arrays import Floats
from sentineld.policies.lp.groups import Groups

EARLY_WORTH = 0.005
"""Maximum credit in a plan's program for moving a page early. Like MOVE_WORTH (program.py), it is a
share of the time that a move takes or of the time that one use of a slow page costs, whichever is
less. A promotion gets the full credit halfway between two uses, and none just before the second
use. A demotion gets the full credit just after the first use, and none halfway. The credit breaks
ties between equally good moves in favour of the earlier move. An early move is more robust if
stretches take more or less time than profiled."""


def early_worth(groups: Groups, at: int, times_ns: Floats) -> Floats:
    """The cost that EARLY_WORTH gives to a fast page at each position of a group's lifetime.

    The unit is the time that a move takes or the time that one use of a slow page costs, whichever
    is less.

    Between two uses, a fast page has a cost in the first half of the time and a credit in the
    second half. For pages that stay fast throughout, the sum is about 0.
    """
    length = int(groups.length[at])
    uses = np.flatnonzero(groups.used[:length, at])
    passed = np.concatenate([[0.0], np.cumsum(times_ns[groups.stretches[at]])])
    found: Floats = np.zeros(length)
    if groups.persistent[at]:
        ends = [*uses.tolist(), int(uses[0]) + length]
    else:
        ends = sorted({0, *uses.tolist(), length})
    whole = np.concatenate([passed, passed[1:] + passed[-1]])
    for begin, end in pairwise(ends):
        inside = np.arange(begin + 1, end)
        span = float(whole[end] - whole[begin + 1]) if len(inside) else 0.0
        if span <= 0:
            continue
        low, high = (np.minimum(whole[inside + late], whole[-1]) for late in (0, 1))
        share = 2 * EARLY_WORTH * (high - low) / span
        first = (low + high) / 2 < whole[begin + 1] + span / 2
        # After the last use of a transient group, fast pages have a cost but no credit, because no
        # use follows.
        first |= (not groups.persistent[at]) & (end == length)
        found[inside % length] += np.where(first, share, -share)
    return found
