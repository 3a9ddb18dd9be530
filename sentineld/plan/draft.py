# SPDX-License-Identifier: Apache-2.0
"""Draft a plan from a layout, and complete a plan once its moves are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, Layout, Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.after_use import after_use
from sentineld.plan.items import transient
from sentineld.plan.predict import initial_tiers, predicted, unpredicted
from sentineld.plan.reasons import reasons
from sentineld.plan.residency import Residency, peak_fast_pages, residency
from sentineld.plan.schedule import births_waits
from sentineld.plan.slow_births import evict_slow_births
from sentineld.plan.working_set import streamed_note


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
    """Complete a plan whose moves are chosen: add initial tiers, prediction and reasons.

    On paged tiers, the moves and waits are also adapted to the pager, and if the working sets of
    some stretches exceed the budget, a note gives the number of these stretches.
    """
    if tiers.paged:
        plan = after_use(plan, profile)
    plan = replace(plan, initial_tier=initial_tiers(plan, profile))
    found = residency(plan, profile)
    plan = replace(plan, reasons=reasons(plan, profile, found))
    if tiers.paged:
        plan = with_births_waits(evict_slow_births(plan, profile), profile, found)
        plan = replace(plan, notes=(*plan.notes, *streamed_note(profile, plan.budget_bytes)))
    return replace(plan, predicted=predicted(plan, profile, tiers, found))


def with_births_waits(plan: Plan, profile: Profile, found: Residency) -> Plan:
    """The plan with waits: births wait until demotions have made room for them."""
    charged = peak_fast_pages(plan, profile, found)
    limit = plan.budget_bytes // profile.page_bytes
    waits = births_waits(plan, profile, found, charged, transient(profile), limit)
    return replace(plan, layout=replace(plan.layout, waits=waits.astype(np.int32)))
