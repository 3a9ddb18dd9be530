# SPDX-License-Identifier: Apache-2.0
"""Policy `weighted-interleave`: interleave pages by the weights that the kernel derives itself.

Based on MPOL_WEIGHTED_INTERLEAVE (Linux 6.9) with automatic weights (Linux 6.16, mm/mempolicy.c):
mempolicy_set_node_perf() takes the lower of each node's read and write bandwidths.
reduce_interleave_weights() scales these bandwidths so that all weights add up to at most 32
(`weightiness`), rounds them down, but not below 1, and divides them by their greatest common
divisor. A process then gets its pages from the nodes in turn: from each node, as many pages as the
node's weight. If a node is full, the page comes from the other node.

The budget goes to the persistent tensors first, in the order of the profile's table of tensors. Of
each tensor's pages, the fast tier gets its share by weight, until the budget is used up. It does
not matter which pages of a persistent tensor are fast; the policy takes its first pages. The other
tensors lie in an arena in the order of births, as an allocator would place them. Beginning with the
first page, the arena's pages alternate between the tiers until the budget is used up. So a tensor
can be partly fast, and dead tensors' pages stay on their tier for the next tensors. In each turn, a
tier gets as many pages as its weight, multiplied by a factor (`turn_pages()`). The factor is 1 in
the kernel; here it is larger if that is necessary to limit the number of regions.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.model.plan import Plan, Region
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.items import transient
from sentineld.plan.layout import Area, build_layout
from sentineld.policies.registry import register
from sentineld.policies.require import require_room
from sentineld.policies.rivals.fixed import with_layout
from sentineld.policies.rivals.interleave import interleaved
from sentineld.policies.shares import usable_pages

WEIGHTINESS = 32
"""The kernel's limit on the sum of the weights, before weights below 1 are raised to 1 and all are
divided by their greatest common divisor."""

UNIT_BYTES_PER_S = 1e6
"""The kernel counts bandwidths in whole MB/s."""

TURNS_MAX = 256
"""Limit on the number of turns of the fast tier in the arena."""


@register()
class WeightedInterleave:
    """Policy `weighted-interleave`; see the module's docstring."""

    name = "weighted-interleave"
    charges_budget = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """See Policy. Raises SentinelError if the budget is negative."""
        require_room(budget_bytes)
        fast, slow = weights(tiers)
        limit = usable_pages(budget_bytes, profile.page_bytes)
        kept = until_full(interleaved(profile, fast / (fast + slow))[1], limit)
        rows = np.flatnonzero(transient(profile))
        area = Area("interleaved", 1, rows, np.zeros(len(rows), np.bool_), as_born=True)
        waits = np.full(profile.stretch_count, -1, np.int64)
        layout = build_layout(profile, [area], waits, heap_tier=1)
        room = limit - int(kept.sum())
        turns = [
            turn
            for region in layout.regions
            for turn in taking_turns(region, fast, slow, room, profile.page_bytes)
        ]
        layout = replace(layout, regions=tuple(turns))
        notes = (f"weights {fast}:{slow}",)
        return with_layout(self.name, profile, tiers, budget_bytes, layout, kept, notes)


def weights(tiers: Tiers) -> tuple[int, int]:
    """(weight of the fast tier, weight of the slow tier). A tier of unknown bandwidth, or a missing
    slow tier, has the weight 1."""
    rates = [
        int(min(tier.read_bytes_per_s, tier.write_bytes_per_s) / UNIT_BYTES_PER_S)
        for tier in tiers.tiers[:2]
    ]
    rates += [0] * (2 - len(rates))
    fast, slow = (max(WEIGHTINESS * rate // max(sum(rates), 1), 1) for rate in rates)
    divisor = gcd(fast, slow)
    return fast // divisor, slow // divisor


def until_full(wanted: Integers, limit: int) -> Integers:
    """The wanted numbers of pages, cut so that their sum does not exceed `limit`: the first numbers
    are kept, one is reduced, and the rest are 0."""
    found: Integers = np.clip(limit - (np.cumsum(wanted) - wanted), 0, wanted)
    return found


def turn_pages(pages: int, fast: int) -> int:
    """The number by which the weights are multiplied, so that the fast tier gets `pages` pages in
    at most TURNS_MAX turns. fast: weight of the fast tier."""
    return max(-(-pages // (fast * TURNS_MAX)), 1)


def taking_turns(region: Region, fast: int, slow: int, room: int, page_bytes: int) -> list[Region]:
    """Cut a region into regions that are fast and slow in turn. After `room` fast pages, the rest
    of the region is slow. fast, slow: the tiers' weights."""
    pages, found = region.bytes // page_bytes, list[Region]()
    unit = turn_pages(min(room, pages), fast)
    at = 0
    while at < pages:
        tier = len(found) % 2 if room else 1
        size = pages - at if not room else min(unit * (slow if tier else fast), pages - at)
        if tier == 0:
            size = min(size, room)
            room -= size
        place = region.offset + at * page_bytes
        found.append(Region(place, size * page_bytes, tier, region.name))
        at += size
    return found
