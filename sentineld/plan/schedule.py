# SPDX-License-Identifier: Apache-2.0
"""Schedules: chunks' lives as moves of page ranges, and the waits that keep the budget.

Births in fast regions can't be held back by the mover, so the process waits
before a stretch whose births need room that a demotion may not have made yet.
Promotions need no wait: the mover starts them only when there is room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.model.arrays import Integers, Mask, Table
from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.items import Items
from sentineld.plan.residency import Residency
from sentineld.policies.lp.relax import Lives


def planned_moves(
    profile: Profile, items: Items, lives: Lives, space: Integers, offset: Integers
) -> Table:
    """MOVE_DTYPE, coalesced and sorted. space, offset: of each tensor, in bytes.

    A promotion is due by the chunk's next use, a demotion by the next boundary,
    from which on its room is counted upon.
    """
    count = items.stretch_count
    stretch = items.stretch_of()
    position, chunk = np.nonzero(lives.moving)
    moves = np.zeros(len(position), MOVE_DTYPE)
    boundary = stretch[position, chunk]
    tensor = items.tensor[chunk]
    demoted = lives.fast[position, chunk]
    uses = np.where(items.worth > 0, np.arange(count)[:, None], 3 * count)
    until_use = np.minimum.accumulate(uses[::-1], axis=0)[::-1]
    around = until_use[0] + count
    following = np.vstack([until_use[1:], np.full((1, uses.shape[1]), 3 * count)])
    use = np.minimum(following, around[None, :])[position, chunk]
    moves["boundary"] = boundary
    moves["deadline"] = np.where(demoted, boundary + 1, items.birth[chunk] + use) % count
    moves["tensor"] = tensor
    moves["space"] = space[tensor]
    moves["tier"] = demoted
    moves["offset"] = offset[tensor] + items.first_page[chunk] * profile.page_bytes
    moves["bytes"] = items.pages[chunk] * profile.page_bytes
    return _sorted(coalesce(moves), count)


def initial_ranges(
    profile: Profile, tensors: Integers, items: Items, lives: Lives, offset: Integers
) -> Table:
    """MOVE_DTYPE: where each page range of these persistent tensors is at boundary 0; those that
    are in no chunk, and slow ones, on tier 1."""
    page = profile.page_bytes
    chunk = np.flatnonzero(items.persistent)
    alone = np.setdiff1d(tensors, items.tensor[chunk])
    ranges = np.zeros(len(chunk) + len(alone), MOVE_DTYPE)
    sizes = profile.tensors["bytes"].astype(np.int64)
    ranges["space"] = Space.HEAP
    ranges["tensor"] = np.concatenate([items.tensor[chunk], alone])
    ranges["tier"] = np.concatenate([~lives.fast[0, chunk], np.ones(len(alone), np.bool_)])
    ranges["offset"] = np.concatenate(
        [offset[items.tensor[chunk]] + items.first_page[chunk] * page, offset[alone]]
    )
    ranges["bytes"] = np.concatenate([items.pages[chunk] * page, -(-sizes[alone] // page) * page])
    return _sorted(coalesce(ranges), 1)


def coalesce(moves: Table) -> Table:
    """Join ranges that touch and move at the same boundary to the same tier. The deadline is the
    first of theirs, the tensor the one in front."""
    if not len(moves):
        return moves
    moves = np.sort(moves, order=["boundary", "tier", "space", "offset"])
    ends = moves["offset"] + moves["bytes"]
    same = np.ones(len(moves) - 1, np.bool_)
    for name in ("boundary", "tier", "space"):
        same &= moves[name][1:] == moves[name][:-1]
    # A later deadline would be worthless in a range that is wanted early.
    same &= (moves["offset"][1:] == ends[:-1]) & (moves["deadline"][1:] == moves["deadline"][:-1])
    begins = np.flatnonzero(np.concatenate([[True], ~same]))
    joined = moves[begins].copy()
    joined["bytes"] = np.add.reduceat(moves["bytes"], begins)
    return joined


def needed_waits(
    charged: Integers, births: Integers, demoted: Sequence[tuple[int, int]], limit: int
) -> Integers:
    """For each boundary the boundary whose demotions must be complete before it passes, or -1.

    charged: pages charged in each stretch if every demotion is complete when
    the next boundary passes. births: pages born fast in each. demoted: (boundary,
    pages) of the demotions. Without a wait nothing is known to be complete, so
    a demotion's pages count until a wait covers it.
    """
    count = len(charged)
    waits = np.full(count, -1, np.int64)
    pages = np.zeros(count, np.int64)
    for boundary, size in demoted:
        pages[boundary] += size
    open_: list[tuple[int, int]] = []
    # The second turn begins with what the first has left open: the steady state.
    for turn in range(2):
        for boundary in range(count):
            # Of a step ago: the same pages, and they are charged again if they came back.
            open_ = [entry for entry in open_ if entry[0] != boundary]
            over = charged[boundary] + sum(size for _, size in open_) - limit
            if births[boundary] and over > 0 and open_:
                while open_ and over > 0:
                    last, size = open_.pop(0)
                    over -= size
                    if turn:
                        waits[boundary] = last
            if pages[boundary]:
                open_.append((boundary, int(pages[boundary])))
    return waits


def births_waits(
    plan: Plan,
    profile: Profile,
    found: Residency,
    charged: Integers,
    born_fast: Mask,
    limit: int,
) -> Integers:
    """Births wait for the demotions that make their room. charged: fast pages of each stretch.
    born_fast: which tensors may be waited for; those whose pages are born slow are not. limit: fast
    pages."""
    stretch = profile.tensors["birth_stretch"][found.tensor].astype(np.int64)
    born = born_fast[found.tensor] & (found.tier[stretch, np.arange(len(stretch))] == 0)
    births = np.bincount(stretch[born], found.pages[born], minlength=profile.stretch_count)
    down = plan.moves[plan.moves["tier"] != 0]
    demoted = [(int(row["boundary"]), int(row["bytes"]) // profile.page_bytes) for row in down]
    return needed_waits(charged, births.astype(np.int64), demoted, limit)


def _sorted(moves: Table, count: int) -> Table:
    """By boundary, demotions first, then by deadline and place."""
    window = (moves["deadline"].astype(np.int64) - moves["boundary"] - 1) % max(count, 1)
    order = np.lexsort(
        (moves["offset"], moves["space"], window, moves["tier"] == 0, moves["boundary"])
    )
    return moves[order]
