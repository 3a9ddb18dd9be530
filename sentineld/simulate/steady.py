# SPDX-License-Identifier: Apache-2.0
"""The time of a plan's steady step, for policies that choose between plans."""

from __future__ import annotations

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.simulate.replay import Replay
from sentineld.simulate.script import scripts
from sentineld.simulate.world import World

STEPS = 4
"""Number of simulated steps. The time is that of the last step, because pages can still be on the
wrong tier in the earlier steps."""


def steady_step_ns(plan: Plan, profile: Profile, tiers: Tiers) -> float:
    """Return a steady step's time, including the effects of waits and late moves. A policy's
    predicted step time does not include these effects."""
    timing = timing_of(tiers)
    made = scripts(plan, profile, timing)
    capacity_pages = plan.budget_bytes // profile.page_bytes
    page = profile.page_bytes
    promote_ns, demote_ns = timing.promote_ns_per_byte * page, timing.demote_ns_per_byte * page
    world = World(made.cells, capacity_pages, promote_ns, demote_ns, timing.paged)
    replay = Replay(made, world)
    replay.enter()
    return [replay.step().ns for _ in range(STEPS)][-1]
