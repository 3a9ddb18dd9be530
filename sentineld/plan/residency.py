# SPDX-License-Identifier: Apache-2.0
"""Residency: the tier of each page of a plan in each stretch, and the fast pages at each moment.

The residency is computed from the profile and the plan (regions, slots, moves, initial tiers). The
policy's own data is not used, so that checks and reports do not repeat the policy's mistakes.

Array dimensions: S stretches, T tensors, P pieces, M moments (turnover.py), A access rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.plan import SLOT_PLANNED, Plan, Space
from sentineld.model.profile import Profile
from sentineld.plan.items import (
    access_pages,
    dies_in_birth_stretch_of,
    lifetimes,
    tensor_pages,
    transient,
)
from sentineld.plan.turnover import first_moments, life_moments, turnover

UNKNOWN = 254
"""Tier number for pages whose tier the kernel chooses."""
ABSENT = 255
"""Tier number for pages whose tensor is not alive in the stretch."""


@dataclass(frozen=True)
class Residency:
    """The tiers of P pieces over S stretches.

    A piece is a range of pages of one tensor. Each move either covers all of a piece or does not
    touch it.
    """

    tensor: Integers  # (P,): row of the profile's tensors
    first_page: Integers  # (P,): index of the first page within the tensor
    pages: Integers  # (P,)
    # (S, P): tier when the stretch begins, or at the birth if the tensor is born in the stretch;
    # ABSENT if the tensor is not alive.
    tier: npt.NDArray[np.uint8]
    moving: Mask  # (S, P): whether a move of the piece starts when the stretch begins
    end_tier: npt.NDArray[np.uint8]  # (P,): tier at the end of the lifetime, moves included


def places(plan: Plan, profile: Profile) -> tuple[Integers, Integers]:
    """Two arrays (T,): the space and the offset of each tensor.

    space: a Space, or -1 if the tensor's address is not part of the plan.
    offset: bytes from the space's base; heap offsets are rounded down to a page.
    """
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
    """Compute the residency of all planned and persistent tensors over one step.

    Raises SentinelError if a move covers no page of a live tensor.
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
    is_transient = transient(profile)[tensor]
    tier = np.full((count, len(tensor)), ABSENT, np.uint8)
    moving = np.zeros((count, len(tensor)), np.bool_)
    target = np.full((count, len(tensor)), ABSENT, np.uint8)
    for move in plan.moves:
        low = int(move["offset"]) // page
        high = low + int(move["bytes"]) // page
        hit = (space[tensor] == move["space"]) & (start < high) & (start + size > low)
        # A transient tensor that is born in the stretch does not exist yet at the boundary. Another
        # tensor can be on its pages until then.
        hit &= alive[move["boundary"]] & (~is_transient | (birth[tensor] != move["boundary"]))
        if not hit.any():
            raise SentinelError(
                "failed", f"the plan moves pages that hold no tensor at boundary {move['boundary']}"
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


def peak_fast_pages(plan: Plan, profile: Profile, found: Residency) -> Integers:
    """(S,): the largest number of resident fast pages at any moment of each stretch.

    Dead pages count until they are dropped. Demotions of earlier boundaries are assumed to be
    complete. A promotion counts only from the next stretch on. In the stretch in which it starts,
    it cannot lead to more fast pages than the budget allows, because the mover starts a promotion
    only if there is room.
    """
    first = first_moments(profile)
    if len(first) < 2:
        return np.zeros(0, np.int64)
    kept = turnover(plan.layout, profile).kept_pages(int(first[-1]))
    most: Integers = np.maximum.reduceat(occupied_pages(profile, found) + kept, first[:-1])
    return most


def occupied_pages(profile: Profile, found: Residency) -> Integers:
    """(M,): fast pages of live tensors at each moment of the step.

    A move takes effect in the stretch after the one in which it starts.
    """
    return pages_on_tier(profile, found, 0)


def pages_on_tier(profile: Profile, found: Residency, tier: int) -> Integers:
    """(M,): pages of live tensors on a tier (UNKNOWN: on a tier that the kernel has chosen) at each
    moment of the step. A move takes effect as in occupied_pages()."""
    return _occupied(profile, found, found.tier == tier, found.end_tier == tier)


def free_pages(profile: Profile, found: Residency, limit_pages: int) -> Integers:
    """(M,): fast pages that live tensors leave free at each moment; may be negative.

    The moves of a stretch finish at an unknown moment of the stretch. Therefore the occupied pages
    of each moment are computed in two ways: with these moves pending, and with these moves
    complete. The larger number is used.
    """
    # There are two tiers, so a move makes a fast piece slow or a slow piece fast.
    after = (found.tier == 0) ^ found.moving
    occupied = np.maximum(
        occupied_pages(profile, found), _occupied(profile, found, after, found.end_tier == 0)
    )
    free: Integers = limit_pages - occupied
    return free


def _occupied(profile: Profile, found: Residency, counted: Mask, at_end: Mask) -> Integers:
    """(M,): the number of counted pages at each moment.

    counted: (S, P), which pieces count in each stretch. A transient tensor's piece counts only
    between the moments of its birth and its death; a persistent tensor's piece counts at all
    moments of the stretch.
    at_end: (P,), which pieces count at the end of their lifetime. If a tensor dies in the stretch
    of its birth, but in the next step, its piece counts in two parts of this stretch: before the
    death, if `at_end` holds, and after the next birth, if `counted` holds for the stretch.
    """
    tensors = profile.tensors[found.tensor]
    birth, death = life_moments(tensors)
    moments = first_moments(profile)
    first, past = moments[:-1], moments[1:]
    stretch, piece = np.nonzero(counted)
    low, high = first[stretch], past[stretch]
    by_moment = transient(profile)[found.tensor]
    twice = dies_in_birth_stretch_of(profile)[found.tensor]
    born = by_moment[piece] & (tensors["birth_stretch"][piece] == stretch)
    dies = (by_moment & ~twice)[piece] & (tensors["death_stretch"][piece] == stretch)
    begin = np.where(born, birth[piece], low)
    begin = np.clip(begin, low, high - 1)
    end = np.where(dies, death[piece], high)
    end = np.clip(end, begin, high)
    change = np.zeros(int(moments[-1]) + 1, np.int64)
    np.add.at(change, begin, found.pages[piece])
    np.add.at(change, end, -found.pages[piece])
    before = np.flatnonzero(twice & at_end)
    stretch = tensors["death_stretch"][before].astype(np.int64)
    np.add.at(change, first[stretch], found.pages[before])
    end = np.clip(death[before], first[stretch], past[stretch])
    np.add.at(change, end, -found.pages[before])
    occupied: Integers = np.cumsum(change)[:-1]
    return occupied


def fast_shares(profile: Profile, found: Residency) -> Floats:
    """(A,): for each access row, the share (0..1) of the tensor's pages that are on the fast tier.

    A page serves the accesses of a stretch from the tier on which it is when the stretch begins. A
    page that is born later in the stretch serves the accesses from the tier on which it is born. A
    page in flight serves accesses from its source tier.
    """
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
    """Two arrays (A,), one entry per access row: all page accesses, and those that the fast tier
    serves."""
    worth = access_pages(profile)
    return worth, worth * fast_shares(profile, found)


def _pieces(
    plan: Plan, space: Integers, offset: Integers, pages: Integers, page_bytes: int
) -> tuple[Integers, Integers, Integers]:
    """Three arrays (P,), one entry per piece: tensor, first page within the tensor, number of
    pages.

    Tensors are cut wherever a move, an initial range or a region begins or ends within them. A
    tensor of 0 bytes has no piece.

    space, offset, pages: (T,), the tensors' places; offset and pages are given in pages.
    """
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
    for row in np.flatnonzero((space >= 0) & (pages > 0)).tolist():
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
    """(P,): tier of each piece at birth (transient tensors) or at boundary 0 (persistent ones).

    space, start, size: (P,), the pieces' places; start and size in pages.
    """
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
