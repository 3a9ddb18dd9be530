# SPDX-License-Identifier: Apache-2.0
"""The moves of a plan on paged tiers, in the format that the shim's pager reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import Layout, Plan, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import PAGER_MOVE_DTYPE, MoveFlag
from sentineld.model.records import Records
from sentineld.plan.expected import until_needed, useful_until
from sentineld.plan.move_queue import move_times


def pager_moves(plan: Plan, profile: Profile) -> Records:
    """PAGER_MOVE_DTYPE rows, sorted by boundary, evictions first.

    A fetch (a promotion) is useful until the end of the last stretch that uses its pages before
    they are evicted again. Even during this stretch, a fetch reads the pages faster than page
    faults would. An eviction is obsolete as soon as its pages are used, born or moved again.
    """
    count, moves = profile.stretch_count, plan.moves
    evicts = moves["tier"] != 0
    times = move_times(moves, count)
    table = np.zeros(len(moves), PAGER_MOVE_DTYPE)
    table["page"] = moves["offset"] // profile.page_bytes
    table["pages"] = -(-moves["bytes"].astype(np.int64) // profile.page_bytes)
    table["boundary"] = moves["boundary"]
    table["deadline"] = [one.window for one in times]
    fetched_until = np.minimum(useful_until(profile, plan) + 1, count)
    table["end"] = np.where(evicts, until_needed(profile, plan), fetched_until)
    table["flags"] = evicts * int(MoveFlag.EVICT) + (moves["space"] == Space.HEAP) * int(
        MoveFlag.HEAP
    )
    return table[np.lexsort((~evicts, table["boundary"]))]


def without_waits(layout: Layout) -> Layout:
    """The layout without waits for moves. On paged tiers, births and accesses wait in the pager."""
    return replace(layout, waits=np.full_like(layout.waits, -1))
