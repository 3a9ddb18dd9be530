# SPDX-License-Identifier: Apache-2.0
"""A plan made ahead for half of the migration bandwidth, to be entered at once if that goes.

Planning again takes as long as some steps do, and in each of them late moves are waited for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentineld.model.plan import Plan
from sentineld.model.tiers import Tiers
from sentineld.plan.correct import Correction

SPARE_SHARE = 0.5
"""Of the bandwidth: one other process that moves pages leaves so much."""


@dataclass(frozen=True)
class Spare:
    """A plan of the same profile and budget as the live one, for tiers with less bandwidth.
    up_to_bytes_per_s: with no more than this its steps are faster than the live one's."""

    plan: Plan
    tiers: Tiers
    up_to_bytes_per_s: float

    def answer(self, correction: Correction) -> Correction | None:
        """What is answered by entering it for what was measured under the live plan: the correction
        for this plan's tiers. None: another plan is to be made."""
        measured = correction.tiers.migration_bytes_per_s
        if correction.cause != "migration" or measured > self.up_to_bytes_per_s:
            return None
        return replace(correction, tiers=self.tiers)


def with_share(tiers: Tiers, share: float) -> Tiers:
    """The tiers with a part of their migration bandwidth."""
    return replace(tiers, migration_bytes_per_s=tiers.migration_bytes_per_s * share)
