# SPDX-License-Identifier: Apache-2.0
"""Verify a plan against its profile before the plan is used.

Each check tests one invariant. A plan that violates an invariant is rejected with
an error that names the invariant.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Integers
from sentineld.model.plan import SLOT_DROP_PARTS, SLOT_PLANNED, Plan, Space
from sentineld.model.profile import Kind, Profile
from sentineld.plan.drops import covered, drops
from sentineld.plan.items import tensor_pages
from sentineld.plan.packing import alive_together
from sentineld.plan.placement import TIERS, placed_on
from sentineld.plan.promoted import in_ranges, promoted_ranges
from sentineld.plan.residency import ABSENT, UNKNOWN, Residency, peak_fast_pages, places, residency
from sentineld.plan.stall_trial import late_moves, stall_boundaries
from sentineld.plan.turnover import turnover


class PlanError(SentinelError):
    """A plan violates an invariant; `name` is the invariant's name."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(
            "failed", f"the plan violates {name}: {what}", "this is a bug in the policy"
        )
        self.name = name
        self._what = what

    def __reduce__(self) -> tuple[type[PlanError], tuple[str, ...]]:
        return type(self), (self.name, self._what)


def verify(plan: Plan, profile: Profile, budget_bytes: int | None) -> None:
    """Raise PlanError if the plan is inconsistent or exceeds the budget.

    budget_bytes: fast memory for tensor pages; None: the policy ignores the budget, so
        the plan is not checked against it.
    """
    _slots(plan, profile)
    _regions(plan, profile)
    _cuts(plan, profile)
    _late(plan)
    _waits(plan, profile)
    _moves(plan, profile)
    _overlays(plan, profile)
    try:
        found = residency(plan, profile)
    except SentinelError as error:
        raise PlanError("moves-hit-tensors", error.message) from None
    _tiers(plan, profile, found)
    _kept_slow_pages(plan, profile)
    _placed(profile, found)
    if budget_bytes is not None:
        _known(profile, found)
        budget = budget_bytes // profile.page_bytes
        charged = peak_fast_pages(plan, profile, found)
        _budget(charged, budget)
        _gated_births(plan, profile, charged, budget)


def _slots(plan: Plan, profile: Profile) -> None:
    slots = plan.layout.slots
    _ensure(
        len(slots) == profile.slot_count,
        "slots",
        f"{len(slots)} slots for {profile.slot_count} allocations",
    )
    slotted = profile.tensors[profile.tensors["slot"] >= 0]
    wrong = np.flatnonzero(slots["bytes"][slotted["slot"]] != slotted["bytes"])
    _ensure(not len(wrong), "slots", f"slot {_first(slotted['slot'], wrong)} has a wrong size")
    planned = slots[(slots["flags"] & SLOT_PLANNED) != 0]
    _ensure(
        _all(planned["offset"] % profile.page_bytes == 0), "slots", "a slot is not page-aligned"
    )
    last = planned["offset"].astype(np.int64) + planned["bytes"].astype(np.int64)
    _ensure(
        int(last.max(initial=0)) <= plan.layout.arena_bytes, "slots", "a slot ends past the arena"
    )
    parts = plan.layout.parts
    _ensure(int(parts["slot"].max(initial=0)) < max(len(slots), 1), "slots", "a part has no slot")
    of = slots[parts["slot"]]
    begin, size = parts["offset"].astype(np.int64), parts["bytes"].astype(np.int64)
    own = of["flags"] & (SLOT_PLANNED | SLOT_DROP_PARTS) == SLOT_PLANNED | SLOT_DROP_PARTS
    own &= begin >= of["offset"].astype(np.int64)
    own &= begin + size < (of["offset"] + of["bytes"]).astype(np.int64) + profile.page_bytes
    own &= (begin % profile.page_bytes == 0) & (size % profile.page_bytes == 0)
    own[1:] &= (parts["slot"][1:] > parts["slot"][:-1]) | (
        (parts["slot"][1:] == parts["slot"][:-1]) & (begin[1:] >= (begin + size)[:-1])
    )
    _ensure(_all(own), "slots", "a slot drops parts that are not ascending ranges of its own pages")
    outlasting = slotted["slot"][slotted["kind"] == Kind.PERSISTENT]
    misplaced = np.any(slots["flags"][outlasting] & SLOT_PLANNED)
    _ensure(not misplaced, "slots", "a persistent tensor has an offset in the arena")


def _regions(plan: Plan, profile: Profile) -> None:
    slots = plan.layout.slots[(plan.layout.slots["flags"] & SLOT_PLANNED) != 0]
    inside = np.zeros(len(slots), np.int64)
    end = 0
    last = slots["offset"].astype(np.int64) + slots["bytes"].astype(np.int64)
    for region in plan.layout.regions:
        aligned = region.offset % profile.page_bytes == region.bytes % profile.page_bytes == 0
        _ensure(
            region.offset >= end and aligned, "regions", f"{region.name} overlaps or is misaligned"
        )
        end = region.offset + region.bytes
        # A slot is allowed to span several regions if there are no gaps between the regions.
        inside += np.clip(
            np.minimum(last, end) - np.maximum(slots["offset"].astype(np.int64), region.offset),
            0,
            None,
        )
    _ensure(end <= plan.layout.arena_bytes, "regions", "a region ends past the arena")
    _ensure(
        _all(inside == last - slots["offset"].astype(np.int64)),
        "regions",
        "a slot is not fully inside the regions",
    )


def _cuts(plan: Plan, profile: Profile) -> None:
    cuts = profile.stretches["cursor"][profile.stretches["cut"]].astype(np.int64)
    _ensure(np.array_equal(plan.layout.cuts, cuts), "cuts", "they are not the profile's cuts")
    _ensure(_all(np.diff(cuts) > 0), "cuts", "they are not ascending")


def _late(plan: Plan) -> None:
    late, moves = plan.late, plan.moves
    _ensure(
        len(late) in (0, len(moves)), "late", f"the table has {len(late)} rows, not {len(moves)}"
    )
    _ensure(_all(moves["tier"][late_moves(plan)] == 0), "late", "a demotion is late by plan")


def _waits(plan: Plan, profile: Profile) -> None:
    waits, count = plan.layout.waits, profile.stretch_count
    _ensure(len(waits) == count, "waits", f"{len(waits)} waits for {count} boundaries")
    asked = waits[waits != -1]
    _ensure(
        _all((asked >= 0) & (asked < count)), "waits", "a wait refers to a boundary past the step"
    )
    demotions = plan.moves[plan.moves["tier"] != 0]
    demoting = np.unique(demotions["boundary"])
    at, before = np.arange(count), (np.arange(count) - 1) % count
    stalls = np.isin(at, stall_boundaries(plan))
    _ensure(
        _all(waits[stalls] == before[stalls]),
        "waits",
        "the deadline of a late promotion does not wait for the previous boundary",
    )
    known = np.isin(waits, demoting) | (waits == -1) | stalls
    _ensure(_all(known), "waits", "a wait refers to a boundary without demotions")
    _ensure(_all(waits != at), "waits", "a boundary waits for its own moves")


def _moves(plan: Plan, profile: Profile) -> None:
    moves, page = plan.moves, profile.page_bytes
    for name in ("boundary", "deadline"):
        _ensure(_all(moves[name] < profile.stretch_count), "moves", f"a {name} is past the step")
    boundary = moves["boundary"].astype(np.int64)
    _ensure(_all(np.diff(boundary) >= 0), "moves", "boundaries are not ascending")
    promotes = (moves["tier"] == 0).astype(np.int64)
    late = (np.diff(boundary) == 0) & (np.diff(promotes) < 0)
    _ensure(not late.any(), "moves", "a demotion follows a promotion of the same boundary")
    for table in (moves, plan.initial):
        whole = (table["offset"] % page == 0) & (table["bytes"] % page == 0) & (table["bytes"] > 0)
        _ensure(_all(whole), "moves", "a move does not consist of whole pages")
        arena = table[table["space"] == Space.ARENA]
        end = int((arena["offset"] + arena["bytes"]).max(initial=0))
        _ensure(end <= plan.layout.arena_bytes, "moves", "a move ends past the arena")


def _overlays(plan: Plan, profile: Profile) -> None:
    """Check that tensors with overlapping lifetimes share no page."""
    space, offset = places(plan, profile)
    pages = tensor_pages(profile)
    rows = np.flatnonzero((space == Space.ARENA) & (pages > 0))
    rows = rows[np.argsort(offset[rows], kind="stable")]
    low = offset[rows]
    high = low + pages[rows] * profile.page_bytes
    tensors = profile.tensors[rows]
    birth = tensors["birth_event"].astype(np.int64)
    death = tensors["death_event"].astype(np.int64)
    following = np.searchsorted(low, high)
    for at in range(len(rows)):
        others = slice(at + 1, int(following[at]))
        together = alive_together(birth[others], death[others], int(birth[at]), int(death[at]))
        if together.any():
            other = tensors["slot"][at + 1 + int(np.argmax(together))]
            raise PlanError(
                "no-overlay",
                f"slots {tensors['slot'][at]} and {other} are alive together on the same pages",
            )


def _tiers(plan: Plan, profile: Profile, found: Residency) -> None:
    """Check the tiers on which lifetimes begin and end.

    At the end of the step, persistent pages have to be on the tier on which they were at its
    beginning. The pages of a transient tensor have to be dropped at its death, unless they are then
    on the tier of their birth. Pages on an unknown tier must not be moved.
    """
    tensors = profile.tensors[found.tensor]
    lost = (found.tier == UNKNOWN) & found.moving
    _ensure(not lost.any(), "tiers", "pages on an unknown tier are moved")
    persistent = tensors["slot"] < 0
    begin = found.tier[0]
    open_ = np.flatnonzero(persistent & (begin != ABSENT) & (begin != found.end_tier))
    _ensure(
        not len(open_),
        "circle",
        f"tensor {_first(found.tensor, open_)} ends the step on a different tier than it began on",
    )
    kept = ~persistent & ~_dropped(plan, profile, found)
    dirty = np.flatnonzero(kept & (_birth_tier(profile, found) != found.end_tier))
    _ensure(
        not len(dirty),
        "clean-death",
        f"slot {_first(tensors['slot'], dirty)} keeps its pages, although it dies on a different"
        " tier than it was born on",
    )


def _kept_slow_pages(plan: Plan, profile: Profile) -> None:
    """Check the pages that lie in slow regions and that the plan promotes: no tensor may keep such
    a page at its death.

    A late promotion can move such a page when the page already belongs to the next tensor. If the
    page were kept at the death of that next tensor, it would stay in fast memory, and
    peak_fast_pages() would not count it.
    """
    promoted = promoted_ranges(plan, profile.page_bytes)
    found = turnover(plan.layout, profile, (1,), promoted.ravel())
    kept = np.flatnonzero(~found.dropped & in_ranges(found.first, promoted))
    _ensure(
        not len(kept),
        "kept-slow-pages",
        f"slot {_first(profile.tensors['slot'][found.tensor], kept)} keeps slow pages on which a"
        " tensor is promoted",
    )


def _placed(profile: Profile, found: Residency) -> None:
    """Check that the tensors that the script has placed are on their tiers from birth to death."""
    for placement, tier in TIERS.items():
        rows = np.flatnonzero(placed_on(profile, placement) & (tensor_pages(profile) > 0))
        lost = np.flatnonzero(~np.isin(rows, found.tensor))
        what = f"the plan lacks the placed tensor {_first(rows, lost)}"
        _ensure(not len(lost), "placement", what)
        pieces = np.isin(found.tensor, rows)
        elsewhere = (found.tier != ABSENT) & (found.tier != tier)
        wrong = np.flatnonzero(pieces & (elsewhere.any(axis=0) | (found.end_tier != tier)))
        _ensure(
            not len(wrong),
            "placement",
            f"tensor {_first(found.tensor, wrong)} is not always {placement.name.lower()}, where"
            " the script has placed it",
        )


def _known(profile: Profile, found: Residency) -> None:
    """Check that the plan gives each page of a persistent tensor a tier.

    Pages without a tier stay where they are. They may be in fast memory, but peak_fast_pages() does
    not count them.
    """
    persistent = profile.tensors["slot"][found.tensor] < 0
    lost = np.flatnonzero(persistent & (found.tier == UNKNOWN).any(axis=0))
    _ensure(
        not len(lost),
        "budget",
        f"tensor {_first(found.tensor, lost)} has pages without a tier, which may be in fast"
        " memory",
    )


def _budget(charged: Integers, budget: int) -> None:
    if len(charged) and int(charged.max()) > budget:
        worst = int(np.argmax(charged))
        raise PlanError(
            "budget", f"{charged[worst]} pages are charged in stretch {worst}, {budget} allowed"
        )


def _gated_births(plan: Plan, profile: Profile, charged: Integers, budget: int) -> None:
    """Check that births fit the budget even if demotions are late.

    The check charges the pages of a demotion to the budget until the process has waited for the
    demotion at a boundary.
    """
    count = profile.stretch_count
    births = turnover(plan.layout, profile).births(profile)
    down = plan.moves[plan.moves["tier"] != 0]
    demoted = np.bincount(
        down["boundary"], (down["bytes"] // profile.page_bytes).astype(np.int64), minlength=count
    )
    unsure = np.zeros(count)
    # Make two passes, because demotions at the end of a step can still be incomplete when the next
    # step begins.
    for boundary in [*range(count), *range(count)]:
        age = (boundary - np.arange(count)) % count
        waited = int(plan.layout.waits[boundary])
        if waited >= 0:
            unsure[age >= age[waited]] = 0
        unsure[boundary] = 0
        pages = int(charged[boundary] + unsure.sum())
        if births[boundary] and pages > budget:
            raise PlanError(
                "gated-births",
                f"births of stretch {boundary}: up to {pages} pages charged, {budget} allowed",
            )
        unsure[boundary] = demoted[boundary]


def _birth_tier(profile: Profile, found: Residency) -> npt.NDArray[np.uint8]:
    stretch = profile.tensors["birth_stretch"][found.tensor].astype(np.int64)
    tier: npt.NDArray[np.uint8] = found.tier[stretch, np.arange(len(stretch))]
    return tier


def _dropped(plan: Plan, profile: Profile, found: Residency) -> npt.NDArray[np.bool_]:
    page = profile.page_bytes
    _, offset = places(plan, profile)
    slot = profile.tensors["slot"][found.tensor].astype(np.int64)
    first = offset[found.tensor] // page + found.first_page
    return covered(drops(plan.layout, page), slot, first, found.pages, page)


def _all(holds: npt.NDArray[np.bool_]) -> bool:
    return bool(np.all(holds))


def _first(values: npt.NDArray[np.generic], where: Integers) -> object:
    return values[where[0]] if len(where) else None


def _ensure(holds: bool, name: str, what: str) -> None:
    if not holds:
        raise PlanError(name, what)
