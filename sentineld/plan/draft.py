# SPDX-License-Identifier: Apache-2.0
"""Draft a plan from a layout, and complete a plan once its moves are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, Layout, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.predict import initial_tiers, predicted, unpredicted
from sentineld.plan.reasons import reasons
from sentineld.plan.residency import residency


def draft(
    policy: str, profile: Profile, budget_bytes: int, layout: Layout, notes: tuple[str, ...] = ()
) -> Plan:
    """A plan that has a layout but no moves, initial tiers, reasons or prediction yet."""
    return Plan(
        policy=policy,
        budget_bytes=budget_bytes,
        layout=layout,
        moves=np.zeros(0, MOVE_DTYPE),
        initial_tier=np.full(len(profile.tensors), 255, np.uint8),
        reasons=(),
        predicted=unpredicted(),
        notes=notes,
    )


def finished(plan: Plan, profile: Profile, tiers: Tiers) -> Plan:
    """Complete a plan whose moves are chosen: add initial tiers, prediction and reasons."""
    plan = replace(plan, initial_tier=initial_tiers(plan, profile))
    found = residency(plan, profile)
    return replace(
        plan,
        predicted=predicted(plan, profile, tiers, found),
        reasons=reasons(plan, profile, found),
    )
