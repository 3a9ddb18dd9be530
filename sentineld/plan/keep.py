# SPDX-License-Identifier: Apache-2.0
"""Choose the dead pages to keep for the next tensors that are born on them.

A plan that drops all fast pages at their tensor's death causes a page fault for each
page of the next tensor. A fault can take as long as reading the page from slow memory. For
short-lived tensors, these faults are the largest cost of a plan. If fast memory is not full between
the death and the next birth, keeping the pages costs nothing.

The choice of the pages to keep is a cache problem in which the capacity changes with time and
births are the accesses. The solution is to evict the pages whose next birth is furthest in the
future (Belady 1966).
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.drops import with_drops
from sentineld.plan.promoted import in_ranges, promoted_ranges
from sentineld.plan.residency import Residency, free_pages, places, residency
from sentineld.plan.turnover import Turnover, alive_pages, first_moments, turnover

TURNS = 3
"""Number of passes over the circular step. Pages can be kept across the step's end; after this many
passes, the set of these pages has usually converged."""


RESIDENT_MAX = 1.06
"""Limit on resident arena pages, as a multiple of the peak of the live tensors' pages. Dead slow
pages are kept only below this limit, so that they take little memory."""


def keep(
    plan: Plan, profile: Profile, limit_pages: int, share: float = 1.0, keeps_slow: bool = True
) -> Plan:
    """The plan with new drops: dead pages are kept until their next birth if memory has room.

    The shim keeps the pages of a freed slot resident unless the slot's flags tell it to drop them.

    Newly kept fast pages take up at most `share` (0..1) of the free fast memory. Slow pages take no
    fast memory; they are kept while the number of resident arena pages is at most RESIDENT_MAX
    times the peak of live pages. If a page is no longer on its birth tier when its tensor dies, it
    is always dropped, because the next tensor on this page has to be born on that tier, too. Pages
    that are born slow and that the plan promotes for any tensor are always dropped as well. A late
    promotion can move such pages when they already belong to the next tensor. If the pages were
    kept at the death of that tensor, they would stay in fast memory, and peak_fast_pages() would
    not count them.

    limit_pages: the budget, in pages. keeps_slow: whether slow pages are kept. This is False on
    paged tiers, where the next birth on a kept slow page would read the page's dead content from
    the file.
    """
    found = residency(plan, profile)
    birth = profile.tensors["birth_stretch"][found.tensor].astype(np.int64)
    changes_tier: Mask = found.tier[birth, np.arange(len(birth))] != found.end_tier
    start = places(plan, profile)[1][found.tensor] // profile.page_bytes + found.first_page
    cuts = np.concatenate([start[changes_tier], (start + found.pages)[changes_tier]])
    fast = turnover(plan.layout, profile, (0,), cuts)
    promoted = promoted_ranges(plan, profile.page_bytes)
    slow = turnover(plan.layout, profile, (1, None), np.concatenate([cuts, promoted.ravel()]))
    moments = int(first_moments(profile)[-1])
    free = free_pages(profile, found, limit_pages) - fast.kept_pages(moments)
    may = fast.dropped & ~_inside(fast, found, start, changes_tier)
    kept = longest_kept(fast, may, (np.maximum(free, 0) * share).astype(np.int64))
    fast_gone = np.flatnonzero(fast.dropped & ~kept)
    fast_stays = np.flatnonzero(~fast.dropped | kept)
    alive = alive_pages(plan.layout, profile)
    free = int(alive.max(initial=0) * RESIDENT_MAX) - alive - fast.used(fast_stays, moments)
    may = ~_inside(slow, found, start, changes_tier) & keeps_slow
    may &= ~in_ranges(slow.first, promoted)
    kept = longest_kept(slow, may, np.maximum(free, 0))
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
    """(P,): which tenancies' pages are kept, so that as many births as possible reuse pages.

    may: (P,), which tenancies' pages may be kept.
    free: (M,), number of pages that may be kept at each moment (turnover.py).
    """
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
    """(P,): `kept` without the tenancies whose pages do not fit in `free`. Tenancies with the
    longest gaps (Turnover.gap) are removed first.

    Without this removal, the kept pages could exceed `free`, because the passes of longest_kept()
    do not always converge.
    """
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
    """(P,): which tenancies lie in chosen pieces of the residency.

    found: the residency; for its pieces, see Residency.
    start: first page of each piece, counted from the base of its space.
    chosen: mask of the chosen pieces.
    """
    many = int((start + found.pages).max(initial=0)) + 1
    order = np.lexsort((start, found.tensor))
    key = (found.tensor * many + start)[order]
    at = np.searchsorted(key, tenancies.tensor * many + tenancies.first, side="right") - 1
    inside: Mask = chosen[order][np.maximum(at, 0)]
    return inside
