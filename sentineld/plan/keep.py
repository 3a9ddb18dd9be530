# SPDX-License-Identifier: Apache-2.0
"""Which dead tensors' pages stay for the next tensor that is born on them.

A plan that gives all fast pages back when their tensor dies pays a page fault for
each page of the next one: as much as reading that page from slow memory, and for
short-lived tensors the most of what a plan costs. Where fast memory is not full
between death and birth, keeping them costs nothing.

It is the problem of a cache whose size changes with time and whose accesses
are births, so what has to go is what is born on last (Belady 1966).
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.drops import with_drops
from sentineld.plan.residency import Residency, free_pages, places, residency
from sentineld.plan.turnover import Turnover, alive_pages, first_moments, turnover

TURNS = 3
"""Of the step, until what is kept over its end is what another turn begins with."""


RESIDENT_MAX = 1.06
"""Pages of the arena that are there, over those that live tensors take at their most."""


def keep(plan: Plan, profile: Profile, limit_pages: int, share: float = 1.0) -> Plan:
    """The plan with fewer drops: those pages stay that fit in a share of what fast memory is free
    until the next birth on them. limit_pages: of fast memory.

    What dies on another tier than it was born on is dropped as before: it is not where the next
    one wants it. What is slow at both ends takes no fast room: it stays as long as all pages that
    are there are no more than RESIDENT_MAX of what tensors need at their most.
    """
    found = residency(plan, profile)
    birth = profile.tensors["birth_stretch"][found.tensor].astype(np.int64)
    astray: Mask = found.tier[birth, np.arange(len(birth))] != found.end_tier
    start = places(plan, profile)[1][found.tensor] // profile.page_bytes + found.first_page
    cuts = np.concatenate([start[astray], (start + found.pages)[astray]])
    fast, slow = (turnover(plan.layout, profile, tiers, cuts) for tiers in ((0,), (1, None)))
    moments = int(first_moments(profile)[-1])
    free = free_pages(profile, found, limit_pages) - fast.kept_pages(moments)
    may = fast.dropped & ~_inside(fast, found, start, astray)
    kept = longest_kept(fast, may, (np.maximum(free, 0) * share).astype(np.int64))
    fast_gone = np.flatnonzero(fast.dropped & ~kept)
    fast_stays = np.flatnonzero(~fast.dropped | kept)
    alive = alive_pages(plan.layout, profile)
    free = int(alive.max(initial=0) * RESIDENT_MAX) - alive - fast.used(fast_stays, moments)
    kept = longest_kept(slow, ~_inside(slow, found, start, astray), np.maximum(free, 0))
    gone = [(fast, fast_gone), (slow, np.flatnonzero(~kept))]
    slot = profile.tensors["slot"].astype(np.int64)
    layout = with_drops(
        plan.layout,
        slot=np.concatenate([slot[some.tensor[rows]] for some, rows in gone]),
        first=np.concatenate([some.first[rows] for some, rows in gone]),
        pages=np.concatenate([some.pages[rows] for some, rows in gone]),
        page_bytes=profile.page_bytes,
    )
    return replace(plan, layout=layout)


def longest_kept(tenancies: Turnover, may: Mask, free: Integers) -> Mask:
    """(P,): tenancies whose pages stay, as many births as can be find theirs. may: (P,), which may
    stay. free: (M,), pages that may be held at each moment beyond what is held already."""
    moments, rows = len(free), np.flatnonzero(may)
    kept = np.zeros(len(may), np.bool_)
    kept[rows[tenancies.gap[rows] == 0]] = True
    rows = rows[tenancies.gap[rows] > 0]
    changes: list[tuple[int, bool, int, int]] = []
    for turn in range(TURNS):
        for row in rows.tolist():
            death = turn * moments + int(tenancies.death[row])
            changes.append((death, True, turn, row))
            changes.append((death + int(tenancies.gap[row]), False, turn, row))
    changes.sort()
    allowed = np.tile(free, TURNS + 1)
    held: dict[tuple[int, int], int] = {}
    furthest: list[tuple[int, int, int]] = []
    total = 0
    for at, (moment, dies, turn, row) in enumerate(changes):
        if dies:
            held[turn, row] = int(tenancies.pages[row])
            total += held[turn, row]
            heappush(furthest, (-moment - int(tenancies.gap[row]), turn, row))
        elif (turn, row) in held:
            total -= held.pop((turn, row))
            kept[row] |= turn == TURNS - 2
        following = changes[at + 1][0] if at + 1 < len(changes) else moment + 1
        if following == moment:
            continue
        room = int(allowed[moment:following].min())
        while total > room and furthest:
            total -= held.pop(heappop(furthest)[1:], 0)
    return _fitting(tenancies, kept, free)


def _fitting(tenancies: Turnover, kept: Mask, free: Integers) -> Mask:
    """Those of them that fit: turns may differ from each other for ever."""
    rows = np.flatnonzero(kept)
    over = tenancies.used(rows, len(free)) > free
    for row in rows[np.argsort(-tenancies.gap[rows], kind="stable")].tolist():
        if not over.any():
            break
        if over[tenancies.used(np.array([row]), len(free)) > 0].any():
            kept[row] = False
            over = tenancies.used(np.flatnonzero(kept), len(free)) > free
    return kept


def _inside(tenancies: Turnover, found: Residency, start: Integers, chosen: Mask) -> Mask:
    """Which tenancies are of chosen pieces. start: of each piece, in pages of its space."""
    many = int((start + found.pages).max(initial=0)) + 1
    order = np.lexsort((start, found.tensor))
    key = (found.tensor * many + start)[order]
    at = np.searchsorted(key, tenancies.tensor * many + tenancies.first, side="right") - 1
    inside: Mask = chosen[order][np.maximum(at, 0)]
    return inside
