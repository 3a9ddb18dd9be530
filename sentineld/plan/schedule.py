# SPDX-License-Identifier: Apache-2.0
"""Schedules: the moves of page ranges, and the waits that enforce the budget.

The mover cannot delay births in fast memory. The process therefore waits at a boundary
if the births after the boundary need memory that an earlier demotion may not have freed yet.
Promotions need no wait, because the mover starts them only if there is room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.model.arrays import Integers, Mask, Table
from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.items import Items, transient
from sentineld.plan.lives import Lives
from sentineld.plan.residency import Residency


def planned_moves(
    profile: Profile, items: Items, lives: Lives, space: Integers, offset: Integers
) -> Table:
    """MOVE_DTYPE: the moves of the chunks, coalesced and sorted.

    The deadline of a promotion is the boundary that begins the stretch of the chunk's next use.
    The deadline of a demotion is the next boundary, because the plan reuses the freed memory
    from that boundary on.

    space, offset: (T,), each tensor's space and its offset in bytes.
    """
    count = items.stretch_count
    stretch = items.stretch_of()
    position, chunk = np.nonzero(lives.moving)
    moves = np.zeros(len(position), MOVE_DTYPE)
    boundary = stretch[position, chunk]
    tensor = items.tensor[chunk]
    demoted = lives.fast[position, chunk]
    next_use = items.next_use()
    use = np.minimum(next_use[1:], next_use[0] + count)[position, chunk]
    moves["boundary"] = boundary
    moves["deadline"] = np.where(demoted, boundary + 1, items.birth[chunk] + use) % count
    moves["tensor"] = tensor
    moves["space"] = space[tensor]
    moves["tier"] = demoted
    moves["offset"] = offset[tensor] + items.first_page[chunk] * profile.page_bytes
    moves["bytes"] = items.pages[chunk] * profile.page_bytes
    return _sorted(coalesce(moves, deaths(profile)), count)


def with_late(moves: Table, late: Table, profile: Profile) -> tuple[Table, Mask]:
    """Returns two arrays: moves and late promotions in one sorted table, and Plan.late for this
    table.

    moves: MOVE_DTYPE, sorted.
    late: MOVE_DTYPE, the promotions that are late by plan. Their deadline becomes the boundary
        after the one at which they may start.
    """
    count = profile.stretch_count
    late = late.copy()
    late["deadline"] = (late["boundary"] + 1) % count
    late = coalesce(late, deaths(profile))
    both = np.concatenate([moves, late])
    mark = np.arange(len(both)) >= len(moves)
    order = np.lexsort((mark, both["tier"] == 0, both["boundary"]))
    return both[order], mark[order]


def initial_ranges(
    profile: Profile, tensors: Integers, items: Items, lives: Lives, offset: Integers
) -> Table:
    """MOVE_DTYPE: the page ranges of persistent tensors with their tier at boundary 0.

    Tensors without a chunk are on tier 1.

    tensors: rows of the persistent tensors. offset: (T,), in bytes from the heap's base.
    """
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


def deaths(profile: Profile) -> Integers:
    """(T,): the stretch in which each transient tensor dies; -1 for other tensors."""
    found: Integers = profile.tensors["death_stretch"].astype(np.int64)
    return np.where(transient(profile), found, -1)


def coalesce(moves: Table, death: Integers | None = None) -> Table:
    """Join adjacent ranges with the same boundary, deadline and tier. Leave out ranges of 0 bytes,
    which tensors of 0 bytes have.

    death: (T,), see deaths(). Ranges of tensors that die in different stretches are not joined: the
        mover cancels a queued move only if all of its pages are dropped. None: such ranges are
        joined, too.
    A joined range gets the `tensor` of its first part.
    """
    moves = moves[moves["bytes"] > 0]
    if not len(moves):
        return moves
    moves = np.sort(moves, order=["boundary", "tier", "space", "offset"])
    ends = moves["offset"] + moves["bytes"]
    same = np.ones(len(moves) - 1, np.bool_)
    for name in ("boundary", "tier", "space"):
        same &= moves[name][1:] == moves[name][:-1]
    # Don't join ranges with different deadlines: all their pages would get the same deadline.
    same &= (moves["offset"][1:] == ends[:-1]) & (moves["deadline"][1:] == moves["deadline"][:-1])
    if death is not None:
        dies = death[moves["tensor"].astype(np.int64)]
        same &= dies[1:] == dies[:-1]
    begins = np.flatnonzero(np.concatenate([[True], ~same]))
    joined = moves[begins].copy()
    joined["bytes"] = np.add.reduceat(moves["bytes"], begins)
    return joined


def needed_waits(
    charged: Integers, births: Integers, demoted: Sequence[tuple[int, int]], limit: int
) -> Integers:
    """(S,): for each boundary, the last boundary whose demotions the process waits for, or -1.

    A demotion is not known to be complete before the process has waited for it at a boundary. Until
    then, its pages count as occupied.

    charged: (S,), pages charged in each stretch if each demotion completes by the next boundary.
    births: (S,), pages born in fast memory in each stretch.
    demoted: (boundary, pages) of each demotion.
    limit: the budget, in pages.
    """
    count = len(charged)
    waits = np.full(count, -1, np.int64)
    pages = np.zeros(count, np.int64)
    for boundary, size in demoted:
        pages[boundary] += size
    open_: list[tuple[int, int]] = []
    # A steady step begins with pending demotions of the previous step. The first pass finds them.
    for turn in range(2):
        for boundary in range(count):
            # Forget the demotions that began at this boundary in the previous step. Their pages are
            # fast again now, and `charged` includes them.
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
    """(S,): the waits that needed_waits() finds for a plan.

    charged: (S,), fast pages charged in each stretch.
    born_fast: (T,), the tensors whose births may need a wait. Of their pages, only those born in
        fast memory count.
    limit: the budget, in pages.
    """
    stretch = profile.tensors["birth_stretch"][found.tensor].astype(np.int64)
    born = born_fast[found.tensor] & (found.tier[stretch, np.arange(len(stretch))] == 0)
    births = np.bincount(stretch[born], found.pages[born], minlength=profile.stretch_count)
    down = plan.moves[plan.moves["tier"] != 0]
    demoted = [(int(row["boundary"]), int(row["bytes"]) // profile.page_bytes) for row in down]
    return needed_waits(charged, births.astype(np.int64), demoted, limit)


def _sorted(moves: Table, count: int) -> Table:
    """Sort by boundary, demotions first, then by deadline, space and offset."""
    window = (moves["deadline"].astype(np.int64) - moves["boundary"] - 1) % max(count, 1)
    order = np.lexsort(
        (moves["offset"], moves["space"], window, moves["tier"] == 0, moves["boundary"])
    )
    return moves[order]
