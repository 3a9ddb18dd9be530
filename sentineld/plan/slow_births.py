# SPDX-License-Identifier: Apache-2.0
"""Plans on paged tiers: pages that are born slow are evicted after the stretch of their birth.

The pager gives every page a frame at its birth, because the file has no content for it yet. So a
page is in memory from its birth until it is evicted, even if it is born slow according to the plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.after_use import sorted_moves
from sentineld.plan.expected import overlapping, without
from sentineld.plan.items import lifetimes, tensor_pages, transient
from sentineld.plan.layout import cut_at_regions
from sentineld.plan.residency import places
from sentineld.plan.schedule import coalesce


def evict_slow_births(plan: Plan, profile: Profile) -> Plan:
    """Add a demotion of each range that is born slow, at the boundary after the range's birth.

    Pages that are promoted at that boundary stay in memory. No demotion is added for a tensor that
    dies before that boundary.
    """
    count, page = profile.stretch_count, profile.page_bytes
    birth, length = lifetimes(profile)
    space, offset = places(plan, profile)
    rows = np.flatnonzero(transient(profile) & (space == Space.ARENA) & (length > 1))
    size = tensor_pages(profile)[rows] * page
    index, begins, sizes = cut_at_regions(plan.layout, offset[rows], size)
    tensor = rows[index]
    slow = np.zeros(len(begins), np.bool_)
    for region in plan.layout.regions:
        inside = (begins >= region.offset) & (begins < region.offset + region.bytes)
        slow |= inside & (region.tier == 1)
    moves = np.zeros(int(slow.sum()), MOVE_DTYPE)
    moves["tensor"] = tensor[slow]
    moves["boundary"] = (birth[tensor[slow]] + 1) % count
    moves["deadline"] = (birth[tensor[slow]] + 2) % count
    moves["space"], moves["tier"] = Space.ARENA, 1
    moves["offset"], moves["bytes"] = begins[slow], sizes[slow]
    promoted = plan.moves[plan.moves["tier"] == 0]
    at_once = [promoted[promoted["boundary"] == move["boundary"]] for move in moves]
    parts = [
        without(move, here[overlapping(here, move)])
        for move, here in zip(moves, at_once, strict=True)
    ]
    moves = coalesce(np.concatenate([moves[:0], *parts]))
    return replace(plan, moves=sorted_moves(np.concatenate([plan.moves, moves])))
