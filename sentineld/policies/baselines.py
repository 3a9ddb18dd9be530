# SPDX-License-Identifier: Apache-2.0
"""Baselines: plans that have a layout but no moves, and that ignore the budget.

Baselines use an arena, as every plan does. A comparison with a baseline therefore shows only the
effect of placement and moves. Baselines that put everything on one tier lay out the tensors in the
order of births.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sentineld.model.energy import energy_of
from sentineld.model.plan import MOVE_DTYPE, Plan, Prediction, Space
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.draft import draft
from sentineld.plan.first_touch import NAME, REASON, first_touch_plan
from sentineld.plan.items import access_pages, tensor_pages, transient
from sentineld.plan.layout import Area, build_layout
from sentineld.plan.predict import initial_tiers, predicted
from sentineld.plan.residency import places
from sentineld.plan.schedule import coalesce
from sentineld.policies.registry import register


@register("fast-only", 0, "on the fast tier, without a limit")
@register("slow-only", 1, "on the slow tier")
@register(NAME, None, REASON)
@dataclass
class Baseline:
    """A baseline policy."""

    name: str

    tier: int | None
    """Tier of all pages; None: the kernel places each page."""

    reason: str
    """Reason for each tensor's placement; see Plan.reasons."""

    charges_budget: bool = False

    drops: bool = False
    """See first_touch_plan(). Ignored if `tier` is not None: such baselines never drop pages."""

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Lay out the step; see Policy."""
        if self.tier is None:
            plan = first_touch_plan(profile, budget_bytes, self.drops)
            reasons = (self.reason,) * len(profile.tensors)
            found = _first_touch(plan, profile, tiers)
            return replace(plan, policy=self.name, reasons=reasons, predicted=found)
        rows = np.flatnonzero(transient(profile))
        kept = np.zeros(len(rows), np.bool_)
        areas = [Area("all", self.tier, rows, kept, grouped=False, as_born=True)]
        waits = np.full(profile.stretch_count, -1, np.int64)
        layout = build_layout(profile, areas, waits, heap_tier=self.tier)
        plan = draft(self.name, profile, budget_bytes, layout)
        plan = replace(plan, reasons=(self.reason,) * len(profile.tensors))
        plan = replace(plan, initial=_all_on(profile, self.tier))
        plan = replace(plan, initial_tier=initial_tiers(plan, profile))
        return replace(plan, predicted=predicted(plan, profile, tiers))


def _all_on(profile: Profile, tier: int) -> npt.NDArray[np.void]:
    """MOVE_DTYPE: page ranges that put all persistent tensors of the heap on this tier at
    boundary 0."""
    page = profile.page_bytes
    tensors = profile.tensors
    rows = np.flatnonzero((tensors["slot"] < 0) & (tensors["address"] >= profile.heap_base))
    ranges = np.zeros(len(rows), MOVE_DTYPE)
    ranges["space"] = Space.HEAP
    ranges["tier"] = tier
    ranges["tensor"] = rows
    ranges["offset"] = (tensors["address"][rows] - np.uint64(profile.heap_base)) // page * page
    ranges["bytes"] = tensor_pages(profile)[rows] * page
    return coalesce(ranges)


def _first_touch(plan: Plan, profile: Profile, tiers: Tiers) -> Prediction:
    """Predict a step under first touch. The fast tier has the budget's size and is empty at first.

    Tensors outside the arena fill the fast tier first. The pages of the arena follow, in the order
    of their first births. A page stays where it was first placed. The prediction assumes this even
    if the plan drops pages and a dropped page is placed again at its next birth: the room at that
    birth depends on the moves of a reactive policy, which are not known here.
    """
    page, budget = profile.page_bytes, plan.budget_bytes // profile.page_bytes
    space, offset = places(plan, profile)
    pages, start = tensor_pages(profile), offset // page
    arena = np.flatnonzero(space == Space.ARENA)
    others = np.flatnonzero(space != Space.ARENA)
    share = np.zeros(len(pages))
    left = budget - (np.cumsum(pages[others]) - pages[others])
    share[others] = np.clip(left / np.maximum(pages[others], 1), 0.0, 1.0)
    free = max(budget - int(pages[others].sum()), 0)
    touched = np.full(-(-plan.layout.arena_bytes // page), profile.event_count, np.int64)
    birth = profile.tensors["birth_event"].astype(np.int64)
    for row in arena.tolist():
        inside = touched[start[row] : start[row] + pages[row]]
        np.minimum(inside, birth[row], out=inside)
    fast = np.zeros(len(touched) + 1, np.int64)
    fast[1:][np.argsort(touched, kind="stable")[:free]] = 1
    fast_before = np.cumsum(fast)
    found = fast_before[start[arena] + pages[arena]] - fast_before[start[arena]]
    share[arena] = found / np.maximum(pages[arena], 1)
    worth, rows = access_pages(profile), profile.accesses["tensor"]
    total = float(worth.sum())
    slow = 1 - share[rows]
    return Prediction(
        step_ns=int(timing_of(tiers).stretch_ns(profile, slow).sum()),
        promoted_bytes=0,
        demoted_bytes=0,
        peak_fast_bytes=min(budget, int(pages[others].sum()) + len(touched)) * page,
        fast_share=float((worth * share[rows]).sum()) / total if total else 0.0,
        access_joules=energy_of(tiers).access_joules(profile, slow),
    )
