# SPDX-License-Identifier: Apache-2.0
"""Plans on paged tiers: if possible, no page is evicted in a stretch that uses it.

On other tiers a page in flight still serves accesses at its source, so a plan may demote pages in
the stretch of their last use. On paged tiers, an access to a page that is being evicted has to
fetch the page back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.arrays import Integers, Table
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.expected import overlapping, places_of
from sentineld.plan.items import lifetimes
from sentineld.plan.residency import peak_fast_pages, residency


def after_use(plan: Plan, profile: Profile) -> Plan:
    """The plan, with demotions postponed past the stretches that use their pages.

    If the stretch that begins at a demotion's boundary uses the demoted pages, the demotion is
    postponed to the next stretch that does not use them. The demotion keeps its boundary in two
    cases:

    - Every stretch uses the pages until they are next promoted, their tensor dies or, for
      persistent tensors, the step ends.
    - The delay would keep the pages in memory during a stretch that would exceed the budget if all
      demotions were postponed.
    """
    delay = _delays(plan, profile)
    if not delay.any():
        return plan
    late = _postponed(plan, delay, profile.stretch_count)
    found = residency(late, profile)
    over = peak_fast_pages(late, profile, found) > plan.budget_bytes // profile.page_bytes
    for row in np.flatnonzero(delay).tolist():
        # The additional stretches in which the pages stay in memory.
        longer = int(plan.moves["boundary"][row]) + 1 + np.arange(int(delay[row]))
        if over[longer % profile.stretch_count].any():
            delay[row] = 0
    return _postponed(plan, delay, profile.stretch_count)


def _delays(plan: Plan, profile: Profile) -> Integers:
    """(M,): the number of boundaries by which each move is postponed."""
    count, moves = profile.stretch_count, plan.moves
    found = np.zeros(len(moves), np.int64)
    places = places_of(profile, plan.layout)
    birth, length = lifetimes(profile)
    transient = profile.tensors["slot"] >= 0
    accessed, used = profile.accesses["tensor"], profile.accesses["stretch"]
    for row in np.flatnonzero(moves["tier"] != 0).tolist():
        boundary = int(moves["boundary"][row])
        here = overlapping(places, moves[row])
        alive = here & transient & ((boundary - birth) % count < length)
        # `ends` and `promoted` count stretches from the demotion's boundary on: `ends` to the last
        # stretch of each tensor that is alive on the demoted pages, `promoted` to each promotion of
        # these pages.
        ends = (birth + length - 1 - boundary)[alive] % count
        up = overlapping(moves, moves[row]) & (moves["tier"] == 0)
        promoted = (moves["boundary"][up].astype(np.int64) - boundary) % count
        # When the step begins, a persistent page has to be on the tier that Plan.initial gives it.
        stays = count - boundary if (here & ~transient).any() else count
        end = int(min(stays, ends.min(initial=count), promoted.min(initial=count)))
        uses = set((used[here[accessed]].astype(np.int64) - boundary).tolist())
        uses = {use % count for use in uses}
        delay = next((at for at in range(end) if at not in uses), 0)
        found[row] = delay
    return found


def _postponed(plan: Plan, delay: Integers, count: int) -> Plan:
    moves = plan.moves.copy()
    for name in ("boundary", "deadline"):
        moves[name] = (moves[name] + delay) % count
    return replace(plan, moves=sorted_moves(moves))


def sorted_moves(moves: Table) -> Table:
    """The moves sorted by boundary, demotions first."""
    return moves[np.lexsort((moves["tier"] == 0, moves["boundary"]))]
