# SPDX-License-Identifier: Apache-2.0
"""Plans on paged tiers: no page is evicted in a stretch that uses it.

On other tiers a page in flight is accessed where it was, so a plan may demote pages in the stretch
of their last use. On paged tiers such a page would have to come back.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.expected import overlapping, places_of


def after_use(plan: Plan, profile: Profile) -> Plan:
    """The plan, with each demotion of pages that its first stretch uses one boundary later.

    A birth that needs the frames then waits in the pager until they are free.
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
