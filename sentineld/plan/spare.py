# SPDX-License-Identifier: Apache-2.0
"""Spare plan: a plan made in advance for half of the migration bandwidth.

Replanning takes as long as several steps. If the bandwidth drops, the process waits for late moves
in each of these steps, because the old plan is still live. A spare plan avoids these waits, because
it already exists when the bandwidth drops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sentineld.model.plan import Plan
from sentineld.model.tiers import Tiers
from sentineld.plan.correct import Correction

SPARE_SHARE = 0.5
"""Assumed share of the migration bandwidth that remains if one other process migrates pages."""


@dataclass(frozen=True)
class Spare:
    """A spare plan for the live plan's profile and budget."""

    plan: Plan
    tiers: Tiers  # the tiers with the lower bandwidth that the plan assumes
    # Highest of the tried migration bandwidths (see spare_plan() in simulate/loop.py) at which the
    # spare plan's steps are faster than the live plan's.
    up_to_bytes_per_s: float

    def answer(self, correction: Correction) -> Correction | None:
        """The correction for a switch to the spare plan, with the spare plan's tiers.

        correction: the correction derived from measurements under the live plan. Returns None if
        replanning is needed because the spare plan does not fit that correction.
        """
        measured = correction.tiers.migration_bytes_per_s
        if correction.cause != "migration" or measured > self.up_to_bytes_per_s:
            return None
        return replace(correction, tiers=self.tiers)


def with_share(tiers: Tiers, share: float) -> Tiers:
    """The tiers with this share (0..1) of their migration bandwidth."""
    return replace(tiers, migration_bytes_per_s=tiers.migration_bytes_per_s * share)


def measures_moves(plan: Plan, tiers: Tiers) -> bool:
    """Whether the bandwidth of a live plan's moves is measured. Without this measurement, no spare
    plan is entered. On paged tiers, the bandwidth is not measured."""
    return bool(len(plan.moves)) and not tiers.paged
