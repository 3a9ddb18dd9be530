# SPDX-License-Identifier: Apache-2.0
"""A plan made ahead for half of the migration bandwidth, to be entered at once if that goes.

Planning again takes as long as some steps do, and in each of them late moves are waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentineld.plan.correct import Correction
from sentineld.plan.model import Plan
from sentineld.tiers import Tiers

SPARE_SHARE = 0.5
"""Of the bandwidth: one other process that moves pages leaves so much."""


@dataclass(frozen=True)
class Spare:
    """A plan of the same profile and budget as the live one, for tiers with less bandwidth."""

    plan: Plan
    tiers: Tiers

    def answers(self, correction: Correction, counted: Tiers) -> bool:
        """Whether what was measured is nearer to what this plan counts upon than to what the live
        one does; by their ratios."""
        if correction.cause != "migration":
            return False
        measured = correction.tiers.migration_bytes_per_s
        return measured**2 <= self.tiers.migration_bytes_per_s * counted.migration_bytes_per_s


def spare_tiers(tiers: Tiers) -> Tiers:
    """What a spare plan is made for, beside one for these."""
    return replace(tiers, migration_bytes_per_s=tiers.migration_bytes_per_s * SPARE_SHARE)
