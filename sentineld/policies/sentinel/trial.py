# SPDX-License-Identifier: Apache-2.0
"""The variant of a plan in which the process stalls for late promotions.

The simulator tries the variant, which shows whether stalling is faster than accessing the pages of
late promotions in slow memory (case 3 of the Sentinel paper: there is room for the promotions, but
not enough time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sentineld.model.plan import Plan


class StallVariants:
    """The variants of a policy whose only variant is stalling()."""

    def variants(self, plan: Plan) -> Sequence[tuple[str, Plan]]:
        """Variants for trial runs; see HasVariants."""
        return [("stalls for late promotions", stalling(plan))]


def stalling(plan: Plan) -> Plan:
    """The variant in which the process waits at each deadline of a promotion until the demotions of
    all earlier boundaries, and all late promotions for which there is room, are complete."""
    waits = plan.layout.waits.astype(np.int32)
    count = len(waits)
    due = np.unique(plan.moves["deadline"][plan.moves["tier"] == 0]).astype(np.int64)
    if count > 1:
        waits[due] = (due - 1) % count
    return replace(plan, layout=replace(plan.layout, waits=waits), stalls_for_promotions=True)
