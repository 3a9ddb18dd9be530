# SPDX-License-Identifier: Apache-2.0
"""The plan without placement: each page stays where the kernel puts it at its first touch.

Policy `first-touch` makes this plan. Under any other policy, the simulator uses this plan for the
first steps, before the policy's own plan is made.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.draft import draft
from sentineld.plan.items import transient
from sentineld.plan.layers import short_lived
from sentineld.plan.layout import Area, build_layout

NAME = "first-touch"
REASON = "where the kernel puts it at its first touch"


def first_touch_plan(profile: Profile, budget_bytes: int, drops: bool = False) -> Plan:
    """Make a plan without moves or a prediction. The regions of its layout have no tier.

    drops: whether the pages of each tensor are dropped at its death. The next birth on these pages
        is then a first touch again. Without drops, only the first birth is a first touch.
    """
    placed, short = transient(profile), short_lived(profile)
    # Pages never move, so tensors that share pages are always on the same tier. Lay out short-lived
    # and long-lived tensors in separate areas, so that no short-lived tensor shares pages with a
    # long-lived one.
    parts = {"short-lived": placed & short, "long-lived": placed & ~short}
    areas = []
    for name, chosen in parts.items():
        rows = np.flatnonzero(chosen)
        areas.append(Area(name, None, rows, np.full(len(rows), drops), grouped=False))
    waits = np.full(profile.stretch_count, -1, np.int64)
    layout = build_layout(profile, areas, waits, heap_tier=None)
    plan = draft(NAME, profile, budget_bytes, layout)
    return replace(plan, reasons=(REASON,) * len(profile.tensors))
