# SPDX-License-Identifier: Apache-2.0
"""Plans on paged tiers: no page is evicted in a stretch that uses it.

On other tiers a page in flight still serves accesses at its source, so a plan may demote pages in
the stretch of their last use. On paged tiers an access would have to fetch such a page back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.expected import overlapping, places_of


def after_use(plan: Plan, profile: Profile) -> Plan:
    """The plan, with a demotion postponed by one boundary if its first stretch uses the pages.

    A birth that needs the pages' frames then waits in the pager until the frames are free.
    """
    count, moves = profile.stretch_count, plan.moves.copy()
    places = places_of(profile, plan.layout)
    accessed, used = profile.accesses["tensor"], profile.accesses["stretch"]
    for row in np.flatnonzero(moves["tier"] != 0):
        here = overlapping(places, moves[row])
        if np.any(used[here[accessed]] == moves["boundary"][row]):
            for name in ("boundary", "deadline"):
                moves[name][row] = (moves[name][row] + 1) % count
    order = np.lexsort((moves["tier"] == 0, moves["boundary"]))
    return replace(plan, moves=moves[order])
