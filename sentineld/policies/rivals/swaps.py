# SPDX-License-Identifier: Apache-2.0
"""Swapping between uses: what G10 and Capuchin have in common.

Everything is fast where it is used. Between two uses a tensor may go to the slow
tier and come back: out right after the one use, back just in time for the other. A
book of room and bandwidth, stretch by stretch, says what fits. Short-lived
tensors have a pool of their own that stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats, Integers, Mask, Table
from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.profile import Kind, Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import lasting, lifetimes, tensor_pages, transient
from sentineld.plan.layers import short_lived
from sentineld.plan.layout import Area, area_offsets, build_layout
from sentineld.plan.predict import initial_tiers, predicted, unpredicted
from sentineld.plan.reasons import reasons
from sentineld.plan.residency import charged_pages, places, residency
from sentineld.plan.schedule import births_waits, coalesce

GAP_MIN = 3
"""Stretches from use to use: one to go out, one to come back, and between them one at least in
which the room is free."""

POOL_SHARE = 0.5
"""Of the budget, for a pool that has to be cut down: what moves needs room, too."""

PART_PAGES_MIN = 16
"""A stretch that has bandwidth left for less than this moves nothing of a tensor that is larger."""


class Gap(NamedTuple):
    """A tensor between two of its uses: positions of its life, counted from its birth stretch.
    Round the circle, `until` is past its length."""

    tensor: int
    since: int
    until: int


class Part(NamedTuple):
    """Pages [first, first + pages) of a tensor begin to move at this position."""

    position: int
    first: int
    pages: int


class Swap(NamedTuple):
    """A gap that is used: where its parts go out, and where they come back."""

    gap: Gap
    out: tuple[Part, ...]
    back: tuple[Part, ...]


@dataclass
class Book:
    """usage: fast pages in each stretch, the pool's included, by what is booked. lanes: pages that
    can still be moved in each. slow: which tensors are slow all their lives."""

    profile: Profile
    limit: int
    usage: Integers
    lanes: Floats
    birth: Integers
    length: Integers
    slow: Mask
    pooled: Integers
    swaps: list[Swap]

    @property
    def over(self) -> Mask:
        """(S,): where more is fast than there is room."""
        found: Mask = self.usage > self.limit
        return found

    def stretch(self, gap: Gap, position: int) -> int:
        """The stretch at a position of the gap's tensor."""
        return (int(self.birth[gap.tensor]) + position) % self.profile.stretch_count

    def between(self, gap: Gap) -> Integers:
        """The stretches between the two uses."""
        positions = np.arange(gap.since + 1, gap.until)
        found: Integers = (self.birth[gap.tensor] + positions) % self.profile.stretch_count
        return found

    def lived(self, tensor: int) -> Integers:
        """The stretches in which a tensor lives."""
        positions = np.arange(self.length[tensor])
        found: Integers = (self.birth[tensor] + positions) % self.profile.stretch_count
        return found

    def try_swap(self, gap: Gap) -> bool:
        """Book the gap if its way out ends a stretch before its way back begins."""
        pages = int(tensor_pages(self.profile)[gap.tensor])
        out = self._parts(gap, list(range(gap.since + 1, gap.until)), pages)
        back = self._parts(gap, list(range(gap.until - 1, gap.since, -1)), pages)
        if out is None or back is None or max(out)[0] + 1 >= min(back)[0]:
            return False
        swap = Swap(gap, _numbered(sorted(out)), _numbered(sorted(back)))
        for part in (*swap.out, *swap.back):
            self.lanes[self.stretch(gap, part.position)] -= part.pages
        self._count(swap, -1)
        self.swaps.append(swap)
        return True

    def hasten(self) -> None:
        """Have what comes back come earlier where room and lanes are left: it bears a late
        mover."""
        for at, swap in enumerate(self.swaps):
            earliest = swap.out[-1].position + 2
            back = list(swap.back)
            for number, part in enumerate(back):
                position = part.position
                while position > earliest:
                    now, before = (self.stretch(swap.gap, p) for p in (position, position - 1))
                    if self.usage[before] + part.pages > self.limit:
                        break
                    if self.lanes[before] < part.pages:
                        break
                    self.usage[before] += part.pages
                    self.lanes[before] -= part.pages
                    self.lanes[now] += part.pages
                    position -= 1
                back[number] = part._replace(position=position)
                earliest = position
            self.swaps[at] = swap._replace(back=tuple(back))

    def make_slow(self, tensor: int) -> None:
        """Have a tensor slow all its life; its swaps are given up."""
        for swap in [swap for swap in self.swaps if swap.gap.tensor == tensor]:
            self._count(swap, 1)
            for part in (*swap.out, *swap.back):
                self.lanes[self.stretch(swap.gap, part.position)] += part.pages
            self.swaps.remove(swap)
        self.usage[self.lived(tensor)] -= tensor_pages(self.profile)[tensor]
        self.slow[tensor] = True

    def _parts(self, gap: Gap, positions: list[int], pages: int) -> list[tuple[int, int]] | None:
        """(position, pages) in this order until all are moved; None: the lanes are too full."""
        found: list[tuple[int, int]] = []
        left = pages
        for position in positions:
            lane = int(self.lanes[self.stretch(gap, position)])
            if lane < min(left, PART_PAGES_MIN):
                continue
            found.append((position, min(lane, left)))
            left -= found[-1][1]
            if not left:
                return found
        return None

    def _count(self, swap: Swap, sign: int) -> None:
        """Take what is away off the usage (sign -1), or put it back."""
        first, last = swap.out[0].position, swap.back[-1].position
        for position in range(first, last + 1):
            gone = sum(part.pages for part in swap.out if part.position < position)
            returned = sum(part.pages for part in swap.back if part.position <= position)
            self.usage[self.stretch(swap.gap, position)] += sign * (gone - returned)


def open_book(
    profile: Profile, tiers: Tiers, budget_bytes: int, accesses_slow: bool = False
) -> Book:
    """Everything fast, nothing moved.

    Where the short-lived tensors' pool alone is larger than the budget, and slow
    memory can be accessed, the largest of them are born slow, so that POOL_SHARE of it
    is enough for the others. Raises SentinelError if it can't.
    """
    page, limit = profile.page_bytes, budget_bytes // profile.page_bytes
    birth, length = lifetimes(profile)
    pages, count = tensor_pages(profile), profile.stretch_count
    short = np.flatnonzero(short_lived(profile))
    pooled, pool_pages = short, _packed(profile, short)
    if pool_pages > limit:
        if not accesses_slow:
            raise infeasible(
                f"short-lived tensors need {format_bytes(pool_pages * page)} of fast memory, and "
                f"there are {format_bytes(budget_bytes)}"
            )
        for largest in np.unique(pages[short])[::-1].tolist():
            pooled = short[pages[short] < largest]
            pool_pages = _packed(profile, pooled)
            if pool_pages <= limit * POOL_SHARE:
                break
    usage = np.full(count, pool_pages, np.int64)
    slow = np.zeros(len(pages), np.bool_)
    slow[np.setdiff1d(short, pooled)] = True
    for tensor in np.flatnonzero(_swappable(profile, pooled) & ~slow).tolist():
        usage[(birth[tensor] + np.arange(length[tensor])) % count] += pages[tensor]
    page_ns = timing_of(tiers).move_ns_per_byte * page
    lanes = profile.stretches["time_ns"].astype(np.float64) / page_ns
    return Book(profile, limit, usage, lanes, birth, length, slow, pooled, [])


def _packed(profile: Profile, tensors: Integers) -> int:
    return area_offsets(profile, tensors, grouped=False)[1] if len(tensors) else 0


def infeasible(what: str) -> SentinelError:
    """The error of a system that can't run with so little memory."""
    return SentinelError(
        "failed", f"infeasible as published: {what}", "give the process more fast memory"
    )


def gaps(book: Book) -> list[Gap]:
    """All gaps between two uses that are long enough to be used. A birth is a use."""
    profile, length = book.profile, book.length
    count = profile.stretch_count
    rows = profile.accesses
    position = (rows["stretch"].astype(np.int64) - book.birth[rows["tensor"]]) % max(count, 1)
    order = np.lexsort((position, rows["tensor"]))
    tensor, position = rows["tensor"][order].astype(np.int64), position[order]
    found: list[Gap] = []
    for one in np.flatnonzero(_swappable(profile, book.pooled) & ~book.slow).tolist():
        low, high = np.searchsorted(tensor, [one, one + 1])
        uses = [at for at in position[low:high].tolist() if at < length[one]]
        if profile.tensors["kind"][one] == Kind.PERSISTENT:
            uses = [*uses, *([uses[0] + count] if uses else [])]
        else:
            uses = sorted({0, *uses})
        found += [
            Gap(one, since, until) for since, until in pairwise(uses) if until - since > GAP_MIN
        ]
    return found


def leave_slow(book: Book, cost_ns: Floats) -> int:
    """Where slow memory can be accessed: leave tensors there until the rest fits; how many. The one
    that costs least for what it takes off the excess goes first. cost_ns: (T,), of each if it is
    slow. Raises SentinelError if the pool alone is too large."""
    candidates = np.flatnonzero(_swappable(book.profile, book.pooled) & ~book.slow)
    pages = tensor_pages(book.profile)[candidates].astype(np.float64)
    lives = np.zeros((len(candidates), book.profile.stretch_count))
    for at, tensor in enumerate(candidates.tolist()):
        lives[at, book.lived(tensor)] = 1.0
    left = 0
    while book.over.any():
        taken = (lives @ book.over.astype(np.float64)) * pages
        if not taken.any():
            raise infeasible("short-lived tensors leave no room for what is moved")
        rates = np.where(taken > 0, (cost_ns[candidates] + 1.0) / np.maximum(taken, 1.0), np.inf)
        best = int(np.argmin(rates))
        lives[best] = 0.0
        book.make_slow(int(candidates[best]))
        left += 1
    return left


def swapping_plan(
    name: str, book: Book, tiers: Tiers, budget_bytes: int, notes: tuple[str, ...]
) -> Plan:
    """The book as a plan."""
    profile = book.profile
    placed = transient(profile)
    placed[book.pooled] = False
    moved = np.zeros(len(profile.tensors), np.bool_)
    moved[[swap.gap.tensor for swap in book.swaps]] = True
    fast, slow = np.flatnonzero(placed & ~book.slow), np.flatnonzero(placed & book.slow)
    areas = [
        Area("pool", 0, book.pooled, np.zeros(len(book.pooled), np.bool_), grouped=False),
        Area("fast-born", 0, fast, np.ones(len(fast), np.bool_)),
        Area("slow-born", 1, slow, np.zeros(len(slow), np.bool_)),
    ]
    waits = np.full(profile.stretch_count, -1, np.int64)
    plan = Plan(
        policy=name,
        budget_bytes=budget_bytes,
        layout=build_layout(profile, areas, waits, heap_tier=1),
        moves=np.zeros(0, MOVE_DTYPE),
        initial_tier=np.full(len(profile.tensors), 255, np.uint8),
        reasons=(),
        predicted=unpredicted(),
        notes=notes,
    )
    space, offset = places(plan, profile)
    plan = replace(plan, moves=_moves(book, space, offset), initial=_initial(book, offset))
    found = residency(plan, profile)
    charged = charged_pages(plan, profile, found)
    waited = transient(profile)
    waited[book.pooled] = False
    waits = births_waits(plan, profile, found, charged, waited, book.limit)
    layout = replace(plan.layout, waits=waits.astype(np.int32))
    plan = replace(plan, layout=layout, initial_tier=initial_tiers(plan, profile))
    return replace(plan, predicted=predicted(plan, profile, tiers), reasons=reasons(plan, profile))


def _swappable(profile: Profile, pooled: Integers) -> Mask:
    found: Mask = transient(profile) | lasting(profile)
    found[pooled] = False
    return found


def _numbered(parts: list[tuple[int, int]]) -> tuple[Part, ...]:
    """Parts in order of time take the tensor's pages from its begin to its end."""
    first, found = 0, []
    for position, pages in parts:
        found.append(Part(position, first, pages))
        first += pages
    return tuple(found)


def _moves(
    book: Book, space: Integers, offset: Integers
) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    profile, rows = book.profile, []
    page, count = profile.page_bytes, profile.stretch_count
    for swap in book.swaps:
        tensor = swap.gap.tensor
        for tier, parts in ((1, swap.out), (0, swap.back)):
            for part in parts:
                boundary = book.stretch(swap.gap, part.position)
                due = part.position + 1 if tier else swap.gap.until
                rows.append(
                    (
                        boundary,
                        book.stretch(swap.gap, due) % count,
                        tensor,
                        space[tensor],
                        tier,
                        offset[tensor] + part.first * page,
                        part.pages * page,
                    )
                )
    return in_order(coalesce(np.array(rows, MOVE_DTYPE)), count)


def in_order(moves: Table, count: int) -> Table:
    """By boundary, demotions first, then by deadline and offset. count: of stretches."""
    window = (moves["deadline"].astype(np.int64) - moves["boundary"] - 1) % max(count, 1)
    order = np.lexsort((moves["offset"], window, moves["tier"] == 0, moves["boundary"]))
    return moves[order]


def _initial(book: Book, offset: Integers) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Where lasting pages are at boundary 0: slow if they go out before it and come back after
    it."""
    profile, count = book.profile, book.profile.stretch_count
    pages, page = tensor_pages(profile), profile.page_bytes
    tables = []
    for tensor in np.flatnonzero(lasting(profile)).tolist():
        slow = np.full(int(pages[tensor]), bool(book.slow[tensor]))
        for swap in book.swaps:
            if swap.gap.tensor != tensor:
                continue
            out, back = (np.zeros(len(slow), np.int64) for _ in range(2))
            for when, parts in ((out, swap.out), (back, swap.back)):
                for part in parts:
                    when[part.first : part.first + part.pages] = part.position
            slow |= (out < count) & (back >= count)
        edges = np.flatnonzero(np.diff(np.concatenate([[-1], slow.astype(np.int64), [-1]])))
        ranges = np.zeros(len(edges) - 1, MOVE_DTYPE)
        ranges["space"] = Space.HEAP
        ranges["tensor"] = tensor
        ranges["tier"] = slow[edges[:-1]]
        ranges["offset"] = offset[tensor] + edges[:-1] * page
        ranges["bytes"] = np.diff(edges) * page
        tables.append(ranges)
    return coalesce(np.concatenate([np.zeros(0, MOVE_DTYPE), *tables]))
