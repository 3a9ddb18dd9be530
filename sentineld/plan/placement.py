# SPDX-License-Identifier: Apache-2.0
"""Plans that keep placed tensors on the tiers that the script has asked for.

Under any policy, a placed tensor stays on its tier for its whole life. The policy plans the step
without the placed tensors, with the budget that they leave. planned() then adds them to the
policy's plan, and plan/check.py verifies the result.

Placed tensors that are born in the step lie in one region per tier. The pages of the fast region
stay resident for the whole step, so that births in it do not depend on demotions, which can be
late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Integers, Mask, Table
from sentineld.model.plan import MOVE_DTYPE, SLOT_DROP, SLOT_PLANNED, Layout, Plan, Region, Space
from sentineld.model.profile import Profile
from sentineld.model.protocol import Placement
from sentineld.model.tiers import Tiers
from sentineld.plan.after_use import sorted_moves
from sentineld.plan.draft import draft, with_births_waits
from sentineld.plan.huge import best_begin
from sentineld.plan.items import persistent, tensor_pages, transient
from sentineld.plan.layout import area_offsets, build_layout
from sentineld.plan.policy import Policy
from sentineld.plan.predict import initial_tiers, predicted
from sentineld.plan.residency import places, residency
from sentineld.plan.schedule import coalesce
from sentineld.plan.slow_births import evict_slow_births

TIERS = {Placement.FAST: 0, Placement.SLOW: 1}
"""The tier of each placement."""


def placeable(profile: Profile) -> Mask:
    """(T,): which tensors a plan can place: transient ones, and those in the heap that were
    allocated before the step. Other tensors lie outside the heap, or they get their addresses only
    while the plan is live."""
    return transient(profile) | persistent(profile)


def placed_on(profile: Profile, placement: Placement) -> Mask:
    """(T,): which of the placeable() tensors the script has placed on this tier."""
    found: Mask = (profile.tensors["placed"] == placement) & placeable(profile)
    return found


def planned(policy: Policy, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
    """The policy's plan, with the placed tensors on their tiers.

    All callers that need a policy's plan call this function instead of policy.plan(). Raises
    SentinelError like policy.plan(), or if placed tensors leave no fast memory for the policy.
    """
    if not profile.tensors["placed"].any():
        return policy.plan(profile, tiers, budget_bytes)
    placed = _placed(profile)
    room_bytes = budget_bytes
    if policy.charges_budget:
        room_bytes -= placed.fast_pages * profile.page_bytes
        _require_room(profile, placed, budget_bytes, room_bytes)
    kept = np.flatnonzero(~placed.any)
    rest = _without(profile, kept)
    if len(profile.accesses) and not len(rest.accesses):
        base = _unplanned(policy.name, rest, room_bytes)
    else:
        base = policy.plan(rest, tiers, room_bytes)
    plan = replace(base, budget_bytes=budget_bytes, notes=(*base.notes, *placed.notes(profile)))
    plan = _joined(plan, profile, placed, kept, tiers)
    reasons = np.full(len(profile.tensors), "", object)
    reasons[kept] = base.reasons
    for placement in TIERS:
        reasons[placed.on[placement]] = f"{placement.name.lower()}: the script has placed it"
    plan = replace(plan, reasons=tuple(reasons.tolist()), initial_tier=initial_tiers(plan, profile))
    if any(region.tier is None for region in base.layout.regions):
        # The kernel chooses the tier of the pages in such a region, so only the policy can predict
        # the step. Its prediction does not include the placed tensors.
        return plan
    return replace(plan, predicted=predicted(plan, profile, tiers))


@dataclass(frozen=True)
class _Placed:
    """The placed tensors of a profile."""

    on: dict[Placement, Mask]  # (T,) each: the tensors placed on the tier
    areas: dict[Placement, tuple[Integers, Integers, int]]
    """For each tier: the rows of the placed tensors that are born in the step; their offsets in the
    tier's region, in pages; and the size of this region, in pages."""
    fast_pages: int  # largest number of fast pages that the placed tensors take

    @property
    def any(self) -> Mask:
        """(T,): the tensors placed on either tier."""
        return self.on[Placement.FAST] | self.on[Placement.SLOW]

    def notes(self, profile: Profile) -> tuple[str, ...]:
        """Notes for users: the placed bytes, and the number of tensors that can't be placed."""
        pages, page = tensor_pages(profile), profile.page_bytes
        parts = [
            f"{_tensors(int(which.sum()))} ({format_bytes(int(pages[which].sum()) * page)})"
            f" in {placement.name.lower()} memory"
            for placement, which in self.on.items()
            if which.any()
        ]
        notes = [f"the script has placed {' and '.join(parts)}"] if parts else []
        lost = int(np.count_nonzero(profile.tensors["placed"])) - int(self.any.sum())
        if lost:
            whose = "its address changes" if lost == 1 else "their addresses change"
            notes.append(f"{_tensors(lost)} cannot be placed, because {whose} in each step")
        return tuple(notes)


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"


def _placed(profile: Profile) -> _Placed:
    on, areas = {}, {}
    for placement in TIERS:
        on[placement] = placed_on(profile, placement)
        rows = np.flatnonzero(on[placement] & transient(profile))
        offsets, size = area_offsets(profile, rows, grouped=False) if len(rows) else (rows, 0)
        areas[placement] = rows, offsets, size
    lasting = on[Placement.FAST] & persistent(profile)
    fast_pages = int(tensor_pages(profile)[lasting].sum()) + areas[Placement.FAST][2]
    return _Placed(on, areas, fast_pages)


def _require_room(profile: Profile, placed: _Placed, budget_bytes: int, room_bytes: int) -> None:
    """Raise SentinelError if the placed tensors leave less than a page of the budget.

    The error's code is not "failed": after that code, Planners.plan() would try other policies,
    which would fail, too.
    """
    if placed.fast_pages and room_bytes < profile.page_bytes:
        asked = format_bytes(placed.fast_pages * profile.page_bytes)
        raise SentinelError(
            "budget-too-large",
            f"the script has placed {asked} in fast memory, but the budget leaves"
            f" {format_bytes(max(budget_bytes, 0))} for tensors",
            "give the process more fast memory, or place less in it",
        )


def _without(profile: Profile, kept: Integers) -> Profile:
    """The profile with only these tensors (rows, ascending). Slots, events and times are those of
    the whole profile."""
    row_of = np.full(len(profile.tensors), -1, np.int64)
    row_of[kept] = np.arange(len(kept))
    accesses = profile.accesses
    accesses = accesses[row_of[accesses["tensor"]] >= 0]
    accesses["tensor"] = row_of[accesses["tensor"]]
    tensors = profile.tensors[kept]
    tensors["placed"] = Placement.AUTO
    return replace(profile, tensors=tensors, accesses=accesses)


def _unplanned(name: str, rest: Profile, budget_bytes: int) -> Plan:
    """A plan for tensors that the step does not access: all of them are slow.

    The persistent ones are moved to the slow tier when the plan is entered. Otherwise, they could
    stay in fast memory, and the plan's peak would not include them.
    """
    waits = np.full(rest.stretch_count, -1, np.int64)
    plan = draft(name, rest, budget_bytes, build_layout(rest, (), waits, heap_tier=1))
    initial = _heap_ranges(plan, rest, np.flatnonzero(persistent(rest)), 1)
    reasons = ("slow: not accessed in the step",) * len(rest.tensors)
    return replace(plan, initial=initial, reasons=reasons)


def _joined(plan: Plan, profile: Profile, placed: _Placed, kept: Integers, tiers: Tiers) -> Plan:
    """Add the placed tensors to a plan for the tensors in the rows `kept`."""
    layout = _layout(plan.layout, profile, placed, tiers.paged)
    moves, initial = plan.moves.copy(), plan.initial.copy()
    for table in (moves, initial):
        table["tensor"] = kept[table["tensor"]]
    initial = np.concatenate([initial, _initial(plan, profile, placed)])
    order = np.lexsort((initial["offset"], initial["space"]))
    plan = replace(plan, layout=layout, moves=moves, initial=initial[order])
    return _evicting(plan, profile) if tiers.paged else plan


def _layout(layout: Layout, profile: Profile, placed: _Placed, paged: bool) -> Layout:
    """Append a region to the layout for each tier with placed tensors that the step allocates."""
    page = profile.page_bytes
    slots, regions, end = layout.slots.copy(), list(layout.regions), layout.arena_bytes // page
    for placement, (rows, offsets, size) in placed.areas.items():
        if not len(rows):
            continue
        end = best_begin(end, size, page)
        slot, tier = profile.tensors["slot"][rows], TIERS[placement]
        slots["bytes"][slot] = profile.tensors["bytes"][rows]
        slots["offset"][slot] = (end + offsets) * page
        # On paged tiers, drop slow tensors at their death: a dead page takes up room in the file.
        slots["flags"][slot] = SLOT_PLANNED | (SLOT_DROP if paged and tier else 0)
        regions.append(Region(end * page, size * page, tier, f"placed {placement.name.lower()}"))
        end += size
    return replace(layout, slots=slots, regions=tuple(regions), arena_bytes=end * page)


def _initial(plan: Plan, profile: Profile, placed: _Placed) -> Table:
    """MOVE_DTYPE: the ranges of the placed tensors that were allocated before the step."""
    lasting = persistent(profile)
    return np.concatenate(
        [
            _heap_ranges(plan, profile, np.flatnonzero(placed.on[placement] & lasting), tier)
            for placement, tier in TIERS.items()
        ]
    )


def _heap_ranges(plan: Plan, profile: Profile, rows: Integers, tier: int) -> Table:
    """MOVE_DTYPE: the ranges of these persistent tensors, on this tier at boundary 0."""
    _, offset = places(plan, profile)
    ranges = np.zeros(len(rows), MOVE_DTYPE)
    ranges["space"], ranges["tier"], ranges["tensor"] = Space.HEAP, tier, rows
    ranges["offset"] = offset[rows]
    ranges["bytes"] = tensor_pages(profile)[rows] * profile.page_bytes
    return coalesce(ranges)


def _evicting(plan: Plan, profile: Profile) -> Plan:
    """On paged tiers, extend the plan by evictions of those placed tensors that are born slow. For
    the other tensors, the plan already has such evictions (plan/draft.py)."""
    own = tuple(region for region in plan.layout.regions if region.name == "placed slow")
    assert not len(plan.late)  # on paged tiers, no plan has late promotions
    alone = replace(plan, layout=replace(plan.layout, regions=own), moves=plan.moves[:0])
    more = evict_slow_births(alone, profile).moves
    if not len(more):
        return plan
    plan = replace(plan, moves=sorted_moves(np.concatenate([plan.moves, more])))
    return with_births_waits(plan, profile, residency(plan, profile))
