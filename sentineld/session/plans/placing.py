# SPDX-License-Identifier: Apache-2.0
"""Decides when to plan again if the script changes explicit placements while a plan is live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from sentineld.profile.placed import with_placements
from sentineld.session.live.shapes import Planned
from sentineld.session.plans.following import Following
from sentineld.session.work.planning import PlanInput

AGAIN_S = 10.0
"""Minimum time between two plans for changed placements. A script can change placements in each
step."""


class Placing:
    """Compares the script's placements with those of the live plan. All calls come from the
    session's thread."""

    def __init__(self) -> None:
        # The plan and the placements that need no further planning: the plan has these placements,
        # or planning for them has begun.
        self._planned: Planned | None = None
        self._placed: Mapping[int, int] | None = None
        self._next_s = 0.0

    def wanted(self, following: Following, placed: Mapping[int, int] | None) -> PlanInput | None:
        """The input for planning again; None if the live plan has the placements in `placed`, if
        planning for them has begun or failed before, or if less than AGAIN_S has passed since
        planning last began.

        placed: placements by address; None: the process has not reported any.
        """
        planned = following.planned
        if placed is None or planned is None or time.monotonic() < self._next_s:
            return None
        # Compare by identity: each message creates a new mapping, and == cannot compare plans with
        # numpy tables.
        if self._planned is planned and self._placed is placed:
            return None
        profile = with_placements(planned.profile, placed)
        if profile is planned.profile:
            self._planned, self._placed = planned, placed
            return None
        return replace(
            following.plan_input(),
            profile=profile,
            charged=with_placements(planned.charged, placed),
        )

    def begun(self, following: Following, placed: Mapping[int, int] | None) -> None:
        """Record that planning for these placements has begun."""
        self._planned, self._placed = following.planned, placed
        self._next_s = time.monotonic() + AGAIN_S
