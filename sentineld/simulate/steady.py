# SPDX-License-Identifier: Apache-2.0
"""What a plan's step takes once it is a habit, for policies that choose between plans."""

from __future__ import annotations

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.simulate.replay import Replay
from sentineld.simulate.script import scripts
from sentineld.simulate.world import World

STEPS = 4
"""The first ones begin with pages elsewhere."""


def steady_step_ns(plan: Plan, profile: Profile, tiers: Tiers) -> float:
    """With its waits and late moves, which a prediction does not have."""
    timing = timing_of(tiers)
    made = scripts(plan, profile, timing)
    capacity_pages = plan.budget_bytes // profile.page_bytes
    replay = Replay(
        made, World(made.cells, capacity_pages, timing.move_ns_per_byte * profile.page_bytes)
    )
    replay.begin()
    return [replay.step().ns for _ in range(STEPS)][-1]
