# SPDX-License-Identifier: Apache-2.0
"""Where the pages of a plan are, stretch by stretch: the plan carried out on paper.

Made from the plan alone (regions, slots, moves, first tiers), not from what the
policy meant, so that checks and reports do not repeat the policy's mistakes. A
page is charged to the fast tier in each stretch in which it is there at the
begin, is born there, or is on its way to or from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import SLOT_DROP, SLOT_PLANNED, Plan, Space
from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import access_pages, lifetimes, tensor_pages
from sentineld.plan.turnover import first_moments, turnover

UNKNOWN = 254
"""Of pages that the kernel places as it likes."""
ABSENT = 255
"""Of pages whose tensor is not alive in the stretch."""


@dataclass(frozen=True)
class Residency:
    """P pieces: page ranges of tensors that are always moved as one.

    tensor, first_page, pages: (P,). tier: uint8 (S, P), when a stretch begins
    or at birth in it; ABSENT while not alive. moving: (S, P), a move goes on in
    the stretch. end_tier: (P,), after the last stretch of the piece's life.
    """

    tensor: Integers
    first_page: Integers
    pages: Integers
    tier: npt.NDArray[np.uint8]
    moving: Mask
    end_tier: npt.NDArray[np.uint8]


def places(plan: Plan, profile: Profile) -> tuple[Integers, Integers]:
    """(Space, offset in bytes) of each tensor; space -1: it has no place that the plan knows."""
    tensors = profile.tensors
    space = np.full(len(tensors), -1, np.int64)
    offset = np.zeros(len(tensors), np.int64)
    persistent = (tensors["slot"] < 0) & (tensors["address"] >= profile.heap_base)
    space[persistent] = Space.HEAP
    heap = tensors["address"][persistent] - np.uint64(profile.heap_base)
    offset[persistent] = heap.astype(np.int64) // profile.page_bytes * profile.page_bytes
    slotted = np.flatnonzero(tensors["slot"] >= 0)
    slots = plan.layout.slots[tensors["slot"][slotted]]
    planned = (slots["flags"] & SLOT_PLANNED) != 0
    space[slotted[planned]] = Space.ARENA
    offset[slotted[planned]] = slots["offset"][planned].astype(np.int64)
    return space, offset


def residency(plan: Plan, profile: Profile) -> Residency:
    """Follow all planned and persistent tensors once round the circle.

    Raises SentinelError where a move finds no live tensor to move.
    """
    count, page = profile.stretch_count, profile.page_bytes
    space, offset = places(plan, profile)
    pages = tensor_pages(profile)
    birth, length = lifetimes(profile)
    tensor, first, size = _pieces(plan, space, offset // page, pages, page)
    start = offset[tensor] // page + first
    state = _first_tiers(plan, space[tensor], start, size, page)
    position = (np.arange(count)[:, None] - birth[tensor][None, :]) % max(count, 1)
    alive = position < length[tensor][None, :]
    tier = np.full((count, len(tensor)), ABSENT, np.uint8)
    moving = np.zeros((count, len(tensor)), np.bool_)
    target = np.full((count, len(tensor)), ABSENT, np.uint8)
    for move in plan.moves:
        low = int(move["offset"]) // page
        high = low + int(move["bytes"]) // page
        hit = (space[tensor] == move["space"]) & (start < high) & (start + size > low)
        hit &= alive[move["boundary"]]
        if not hit.any():
            raise SentinelError(
                "failed", f"the plan moves pages at boundary {move['boundary']} that hold no tensor"
            )
        moving[move["boundary"], hit] = True
        target[move["boundary"], hit] = move["tier"]
    pieces = np.arange(len(tensor))
    for at in range(count):
        stretch = (birth[tensor] + at) % max(count, 1)
        lives = at < length[tensor]
        tier[stretch[lives], pieces[lives]] = state[lives]
        moves = lives & moving[stretch, pieces]
        state = np.where(moves, target[stretch, pieces], state)
    return Residency(tensor, first, size, tier, moving, state)


def charged_pages(plan: Plan, profile: Profile, found: Residency) -> Integers:
    """Fast pages charged in each stretch.

    Regions born fast whose tensors are not dropped stay resident as a whole;
    other pages count while their tensor lives and they are fast or in flight.
    """
    in_resident = _in_resident(plan, profile, found)
    fast = ((found.tier == 0) | found.moving) & ~in_resident[None, :]
    charged: Integers = (fast * found.pages).sum(axis=1) + _resident_pages(plan, profile)
    return charged


def crowded_pages(plan: Plan, profile: Profile, found: Residency) -> Integers:
    """Fast pages at the fullest moment of each stretch, if what was demoted before is complete.

    Pages of dead tensors count until they are given back. Promotions count once they have landed:
    they go only where there is room.
    """
    first = first_moments(profile)
    if len(first) < 2:
        return np.zeros(0, np.int64)
    kept = turnover(plan.layout, profile).kept_pages(int(first[-1]))
    crowded: Integers = np.maximum.reduceat(occupied_pages(profile, found) + kept, first[:-1])
    return crowded


def occupied_pages(profile: Profile, found: Residency) -> Integers:
    """Fast pages of live tensors at each moment of the step (turnover.py), moves of the moment's
    stretch not counted."""
    return _occupied(profile, found, found.tier == 0)


def free_pages(profile: Profile, found: Residency, limit_pages: int) -> Integers:
    """What live tensors leave of so many fast pages at each moment, before as well as after the
    moves of its stretch: they go where there is room, demotions first."""
    after = (found.tier == 0) ^ found.moving
    occupied = np.maximum(occupied_pages(profile, found), _occupied(profile, found, after))
    free: Integers = limit_pages - occupied
    return free


def _occupied(profile: Profile, found: Residency, fast: Mask) -> Integers:
    tensors = profile.tensors[found.tensor]
    slotted = tensors["slot"] >= 0
    moments = first_moments(profile)
    first, past = moments[:-1], moments[1:]
    stretch, piece = np.nonzero(fast)
    low, high = first[stretch], past[stretch]
    passing = slotted & (tensors["kind"] != Kind.PERSISTENT)
    # Who is born and dies in the same stretch a step later is there for all of it.
    passing &= (tensors["birth_stretch"] != tensors["death_stretch"]) | ~tensors["wraps"]
    here = passing[piece]
    born = here & (tensors["birth_stretch"][piece] == stretch)
    dies = here & (tensors["death_stretch"][piece] == stretch)
    begin = np.where(born, tensors["birth_event"][piece] + stretch + 1, low)
    begin = np.clip(begin, low, high - 1)
    end = np.where(dies, tensors["death_event"][piece] + stretch + 1, high)
    end = np.clip(end, begin, high)
    change = np.zeros(int(moments[-1]) + 1, np.int64)
    np.add.at(change, begin, found.pages[piece])
    np.add.at(change, end, -found.pages[piece])
    occupied: Integers = np.cumsum(change)[:-1]
    return occupied


def fast_shares(profile: Profile, found: Residency) -> Floats:
    """For each access row the share of its tensor's pages that serve it fast: those that are on the
    fast tier when the stretch begins, or at birth. In flight, a page is still at its source."""
    rows = profile.accesses
    share = np.zeros((profile.stretch_count, len(profile.tensors)))
    for stretch in range(profile.stretch_count):
        share[stretch] = np.bincount(
            found.tensor, found.pages * (found.tier[stretch] == 0), minlength=len(profile.tensors)
        )
    pages = np.maximum(tensor_pages(profile), 1)
    shares: Floats = share[rows["stretch"], rows["tensor"]] / pages[rows["tensor"]]
    return shares


def served_pages(profile: Profile, found: Residency) -> tuple[Floats, Floats]:
    """(page accesses, those of them served fast) of each access row."""
    worth = access_pages(profile)
    return worth, worth * fast_shares(profile, found)


def _in_resident(plan: Plan, profile: Profile, found: Residency) -> Mask:
    """Which pieces lie in regions that are charged as a whole."""
    resident = _resident_regions(plan, profile)
    slots = profile.tensors["slot"][found.tensor]
    slotted = slots >= 0
    if not len(resident):
        return np.zeros(len(slots), np.bool_)
    inside: Mask = slotted & resident[np.where(slotted, slots, 0)]
    return inside


def _resident_pages(plan: Plan, profile: Profile) -> int:
    return sum(
        region.bytes // profile.page_bytes
        for region in plan.layout.regions
        if region.tier == 0 and _undropped(plan, region.offset, region.bytes).any()
    )


def _undropped(plan: Plan, offset: int, size: int) -> Mask:
    slots = plan.layout.slots
    inside = (slots["offset"] >= offset) & (slots["offset"] < offset + size)
    found: Mask = (
        inside & ((slots["flags"] & SLOT_PLANNED) != 0) & ((slots["flags"] & SLOT_DROP) == 0)
    )
    return found


def _resident_regions(plan: Plan, profile: Profile) -> Mask:
    """For each slot whether it lies in a fast-born region that stays resident."""
    slots = plan.layout.slots
    inside = np.zeros(len(slots), np.bool_)
    for region in plan.layout.regions:
        if region.tier == 0 and _undropped(plan, region.offset, region.bytes).any():
            inside |= (slots["offset"] >= region.offset) & (
                slots["offset"] < region.offset + region.bytes
            )
    inside &= (slots["flags"] & SLOT_PLANNED) != 0
    return inside


def _pieces(
    plan: Plan, space: Integers, offset: Integers, pages: Integers, page_bytes: int
) -> tuple[Integers, Integers, Integers]:
    """Cut each tensor wherever a move, a first tier or a region begins or ends within it."""
    cuts: dict[int, Integers] = {}
    for kind in (Space.ARENA, Space.HEAP):
        rows = [table[table["space"] == kind] for table in (plan.moves, plan.initial)]
        ends = [row["offset"] for row in rows] + [row["offset"] + row["bytes"] for row in rows]
        if kind == Space.ARENA:
            edges = [
                (region.offset, region.offset + region.bytes) for region in plan.layout.regions
            ]
            ends.append(np.array(edges, dtype=np.uint64).ravel())
        cuts[kind] = np.unique(np.concatenate(ends).astype(np.int64) // page_bytes)
    tensor: list[int] = []
    first: list[int] = []
    size: list[int] = []
    for row in np.flatnonzero(space >= 0).tolist():
        begin, end = int(offset[row]), int(offset[row] + pages[row])
        inside = cuts[int(space[row])]
        low, high = np.searchsorted(inside, [begin + 1, end])
        edges_of = [begin, *inside[low:high].tolist(), end]
        for left, right in pairwise(edges_of):
            tensor.append(row)
            first.append(left - begin)
            size.append(right - left)
    return (
        np.array(tensor, dtype=np.int64),
        np.array(first, dtype=np.int64),
        np.array(size, dtype=np.int64),
    )


def _first_tiers(
    plan: Plan, space: Integers, start: Integers, size: Integers, page_bytes: int
) -> npt.NDArray[np.uint8]:
    state = np.full(len(start), UNKNOWN, np.uint8)
    for region in plan.layout.regions:
        low = region.offset // page_bytes
        inside = (space == Space.ARENA) & (start >= low)
        inside &= start + size <= low + region.bytes // page_bytes
        state[inside] = UNKNOWN if region.tier is None else region.tier
    for row in plan.initial:
        low = int(row["offset"]) // page_bytes
        high = low + int(row["bytes"]) // page_bytes
        state[(space == row["space"]) & (start >= low) & (start + size <= high)] = row["tier"]
    return state
