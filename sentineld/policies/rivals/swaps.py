# SPDX-License-Identifier: Apache-2.0
"""The book: a record of the swaps that a swapping policy has planned so far.

Every tensor is fast while it is used, unless it is slow for its whole life. Between two uses, a
tensor may be swapped out to the slow tier. It is swapped out right after the first use and swapped
back in just in time for the second. The book records the remaining room and bandwidth of each
stretch, and so shows whether another swap fits. A fast tensor takes up room from its birth to its
death, except while it is swapped out. Short-lived tensors, which die in the layer of their birth,
are not swapped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.model.profile import Kind, Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import lifetimes, persistent, tensor_pages, transient
from sentineld.plan.layers import short_lived
from sentineld.plan.layout import area_offsets
from sentineld.plan.turnover import first_moments, living_pages
from sentineld.policies.shares import page_moves_ns, usable_pages

GAP_MIN = 3
"""Minimum number of stretches between two uses: one to swap the tensor out, one to swap it in, and
between them at least one stretch in which the tensor's room is free."""

SHORT_SHARES = (0.5, 0.25, 0.75, 1.0)
"""If the short-lived tensors exceed the budget and tensors may be born slow, the largest
short-lived ones are born slow, so that the others fit into a share of the budget. Each of these
shares is tried. The rest of the budget is room for tensors that move."""

HINT = "give the process more fast memory"

PART_PAGES_MIN = 16
"""If a stretch can move fewer pages than this, it moves none, unless it can move all remaining
pages of the tensor."""


class Gap(NamedTuple):
    """The time between two uses of a tensor.

    The uses are given as positions. Position p is the stretch (birth + p) % S. Here, `birth` is the
    tensor's birth stretch, 0 for a persistent tensor, and S is the number of stretches.
    """

    tensor: int
    since: int  # the first use
    until: int  # the second use; S or more if it is a persistent tensor's use in the next step


class Part(NamedTuple):
    """Pages [first, first + pages) of a tensor, which begin to move at `position`."""

    position: int
    first: int
    pages: int


class Swap(NamedTuple):
    """A gap in which the tensor is swapped out and back in."""

    gap: Gap
    out: tuple[Part, ...]  # parts that are swapped out
    back: tuple[Part, ...]  # parts that are swapped back in


@dataclass
class Book:
    """The planned swaps, and the room and bandwidth that they leave in each stretch."""

    profile: Profile

    limit: int
    """The budget in pages."""

    occupied: Integers
    """(M,): the number of fast pages in use at each moment of the step (plan/turnover.py) if no
    tensor is swapped out."""

    usage: Integers
    """(S,): the largest number of fast pages in use at any moment of each stretch."""

    lanes: Floats
    """(S,): the number of pages that each stretch still has time to swap in. It is negative if the
    process has to wait for the transfers of this stretch."""

    out_weight: float
    """Time to swap a page out, divided by the time to swap a page in."""

    pages: Integers
    """(T,): size of each tensor in pages."""

    birth: Integers
    """(T,): birth stretch of each tensor."""

    length: Integers
    """(T,): number of stretches in each tensor's lifetime."""

    slow: Mask
    """(T,): which tensors are slow for their whole lives."""

    short: Integers
    """Short-lived tensors that are fast: rows of the profile."""

    kept: bool
    """Whether the short-lived tensors lie in a pool, which keeps its pages during the whole step.
    Otherwise, their pages are dropped when they die."""

    swaps: list[Swap]

    @property
    def over(self) -> Mask:
        """(S,): in which stretches the fast pages exceed the budget."""
        found: Mask = self.usage > self.limit
        return found

    def stretch(self, gap: Gap, position: int) -> int:
        """The stretch at a position in the lifetime of the gap's tensor."""
        return (int(self.birth[gap.tensor]) + position) % self.profile.stretch_count

    def between(self, gap: Gap) -> Integers:
        """The stretches between the two uses of the gap."""
        positions = np.arange(gap.since + 1, gap.until)
        found: Integers = (self.birth[gap.tensor] + positions) % self.profile.stretch_count
        return found

    def lived(self, tensor: int) -> Integers:
        """The stretches in which a tensor lives."""
        positions = np.arange(self.length[tensor])
        found: Integers = (self.birth[tensor] + positions) % self.profile.stretch_count
        return found

    def try_swap(self, gap: Gap, begin: int | None = None, at_once: bool = False) -> bool:
        """If possible, plan a swap for the gap and add the swap to this book; see possible().
        Returns whether the swap was added."""
        swap = self.possible(gap, begin, at_once)
        if swap is not None:
            self.add(swap)
        return swap is not None

    def possible(self, gap: Gap, begin: int | None = None, at_once: bool = False) -> Swap | None:
        """Plan a swap for the gap. Pass the swap to add() only if no other swap has been added to
        this book since.

        begin: position at which the tensor begins to be swapped in; the swap-in begins earlier if
            the bandwidth from `begin` on does not suffice, and later if the swap-out has not ended
            at `begin`. None: as late as possible.
        at_once: swap the whole tensor out in the first stretch of the gap, regardless of the
            bandwidth. The process has to wait until this is done.

        Returns None if the bandwidth does not suffice for both transfers with at least one stretch
        between them.
        """
        pages = int(self.pages[gap.tensor])
        out: list[tuple[int, int]] | None = [(gap.since + 1, pages)]
        if not at_once:
            out = self._parts(gap, list(range(gap.since + 1, gap.until)), pages, self.out_weight)
        if out is None:
            return None
        first = gap.until if begin is None else max(begin, max(out)[0] + 2)
        positions = [*range(first, gap.until), *range(min(first, gap.until) - 1, gap.since, -1)]
        back = self._parts(gap, positions, pages, 1.0)
        if back is None or max(out)[0] + 1 >= min(back)[0]:
            return None
        return Swap(gap, _numbered(sorted(out)), _numbered(sorted(back)))

    def add(self, swap: Swap) -> None:
        """Add a swap that possible() has returned."""
        self._transfer(swap, 1)
        self._count(swap, -1)
        self.swaps.append(swap)

    def hasten(self) -> None:
        """Swap tensors back in earlier where room and bandwidth are left. A move that is planned
        early can meet its deadline even if the mover falls behind the plan."""
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
        """Make a tensor slow for its whole life and remove its swaps."""
        for swap in [swap for swap in self.swaps if swap.gap.tensor == tensor]:
            self._count(swap, 1)
            self._transfer(swap, -1)
            self.swaps.remove(swap)
        self.usage -= _peaks(self.profile, self.occupied)
        self.occupied -= living_pages(self.profile, np.array([tensor]))
        self.usage += _peaks(self.profile, self.occupied)
        self.slow[tensor] = True

    def copy(self) -> Book:
        """A book with the same entries, which can be changed independently."""
        return replace(
            self,
            occupied=self.occupied.copy(),
            usage=self.usage.copy(),
            lanes=self.lanes.copy(),
            slow=self.slow.copy(),
            swaps=list(self.swaps),
        )

    def _transfer(self, swap: Swap, sign: int) -> None:
        """Take the bandwidth of a swap's transfers (sign 1), or give it back (sign -1)."""
        for parts, weight in ((swap.out, self.out_weight), (swap.back, 1.0)):
            for part in parts:
                self.lanes[self.stretch(swap.gap, part.position)] -= sign * part.pages * weight

    def _parts(
        self, gap: Gap, positions: list[int], pages: int, weight: float
    ) -> list[tuple[int, int]] | None:
        """Distribute pages over the positions in list order; return (position, pages) of each
        part.

        weight: time to move a page in the direction of this move, divided by the time to swap a
            page in.

        Returns None if too little bandwidth is left.
        """
        found: list[tuple[int, int]] = []
        left = pages
        birth, count = int(self.birth[gap.tensor]), self.profile.stretch_count
        for position in positions:
            lane = int(self.lanes[(birth + position) % count] / weight)
            if lane < min(left, PART_PAGES_MIN):
                continue
            found.append((position, min(lane, left)))
            left -= found[-1][1]
            if not left:
                return found
        return None

    def _count(self, swap: Swap, sign: int) -> None:
        """Update the usage for a swap: subtract the tensor's pages that are out of fast memory
        in each stretch (sign -1), or add them again (sign 1)."""
        first, last = swap.out[0].position, swap.back[-1].position
        gone = np.zeros(last + 1 - first, np.int64)
        for part in swap.out:
            gone[part.position + 1 - first :] += part.pages
        for part in swap.back:
            gone[part.position - first :] -= part.pages
        start = int(self.birth[swap.gap.tensor]) + first
        # All positions lie in different stretches, because a gap is at most as long as the step.
        self.usage[np.arange(start, start + len(gone)) % self.profile.stretch_count] += sign * gone


def open_book(
    profile: Profile,
    tiers: Tiers,
    budget_bytes: int,
    accesses_slow: bool = False,
    short_share: float = SHORT_SHARES[0],
    kept: bool = False,
) -> Book:
    """A book in which everything is fast and nothing moves.

    If the short-lived tensors exceed the budget and accesses_slow is set, the largest of them are
    slow for their whole lives, so that the others fit into short_share of the budget.

    kept: see Book.

    Raises SentinelError if the short-lived tensors exceed the budget and accesses_slow is not set.
    """
    page = profile.page_bytes
    limit = usable_pages(budget_bytes, page)
    birth, length = lifetimes(profile)
    pages = tensor_pages(profile)
    short = np.flatnonzero(short_lived(profile))
    fast, occupied = short, _short_occupied(profile, short, kept)
    if occupied.max(initial=0) > limit:
        if not accesses_slow:
            raise infeasible(
                "short-lived tensors that are alive at the same time need "
                f"{format_bytes(int(occupied.max()) * page)} of fast memory, but only "
                f"{format_bytes(limit * page)} are available"
            )
        for largest in np.unique(pages[short])[::-1].tolist():
            fast = short[pages[short] < largest]
            occupied = _short_occupied(profile, fast, kept)
            if occupied.max(initial=0) <= limit * short_share:
                break
    slow = np.zeros(len(pages), np.bool_)
    slow[np.setdiff1d(short, fast)] = True
    occupied += living_pages(profile, np.flatnonzero(swappable(profile, fast) & ~slow))
    timing = timing_of(tiers)
    promote_ns, _ = page_moves_ns(tiers, page)
    return Book(
        profile=profile,
        limit=limit,
        occupied=occupied,
        usage=_peaks(profile, occupied),
        lanes=profile.stretches["time_ns"].astype(np.float64) / promote_ns,
        out_weight=timing.demotion_weight,
        pages=pages,
        birth=birth,
        length=length,
        slow=slow,
        short=fast,
        kept=kept,
        swaps=[],
    )


def _short_occupied(profile: Profile, tensors: Integers, kept: bool) -> Integers:
    """(M,): the number of pages that these short-lived tensors occupy at each moment. kept: see
    Book."""
    occupied = living_pages(profile, tensors)
    if kept and len(tensors):
        occupied[:] = area_offsets(profile, tensors, grouped=False)[1]
    return occupied


def _peaks(profile: Profile, occupied: Integers) -> Integers:
    """(S,): the largest value of `occupied` in each stretch. occupied: (M,), see Book."""
    found: Integers = np.maximum.reduceat(occupied, first_moments(profile)[:-1])
    return found


def infeasible(what: str) -> SentinelError:
    """The error if the published system's methods can't make everything fit. what: the reason."""
    return SentinelError("failed", f"infeasible as published: {what}", HINT)


def gaps(book: Book, counted: Mask | None = None) -> list[Gap]:
    """All gaps that are long enough for a swap. A birth counts as a use.

    counted: (A,), which accesses count as uses; None: all.
    """
    profile, length = book.profile, book.length
    count = profile.stretch_count
    rows = profile.accesses if counted is None else profile.accesses[counted]
    position = (rows["stretch"].astype(np.int64) - book.birth[rows["tensor"]]) % max(count, 1)
    order = np.lexsort((position, rows["tensor"]))
    tensor, position = rows["tensor"][order].astype(np.int64), position[order]
    found: list[Gap] = []
    for one in np.flatnonzero(swappable(profile, book.short) & ~book.slow).tolist():
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
    """Make tensors slow until the others fit; return the number of tensors made slow.

    The next tensor is always the one with the lowest cost per freed page. A tensor's freed pages
    are counted once for each stretch of its life in which the fast pages exceed the budget.

    cost_ns: (T,), cost of each tensor if it is slow.

    Raises SentinelError if the short-lived tensors alone exceed the budget.
    """
    candidates = np.flatnonzero(swappable(book.profile, book.short) & ~book.slow)
    pages = book.pages[candidates].astype(np.float64)
    lives = np.zeros((len(candidates), book.profile.stretch_count))
    for at, tensor in enumerate(candidates.tolist()):
        lives[at, book.lived(tensor)] = 1.0
    left = 0
    while book.over.any():
        taken = (lives @ book.over.astype(np.float64)) * pages
        if not taken.any():
            raise SentinelError(
                "failed", "infeasible: short-lived tensors leave no room for other tensors", HINT
            )
        rates = np.where(taken > 0, (cost_ns[candidates] + 1.0) / np.maximum(taken, 1.0), np.inf)
        best = int(np.argmin(rates))
        lives[best] = 0.0
        book.make_slow(int(candidates[best]))
        left += 1
    return left


def swappable(profile: Profile, short: Integers) -> Mask:
    """(T,): which tensors the policies may swap out or make slow: all but the short-lived ones.
    short: see Book."""
    found: Mask = transient(profile) | persistent(profile)
    found[short] = False
    return found


def _numbered(parts: list[tuple[int, int]]) -> tuple[Part, ...]:
    """Assign ranges of the tensor's pages to the parts, which are given in order of time."""
    first, found = 0, []
    for position, pages in parts:
        found.append(Part(position, first, pages))
        first += pages
    return tuple(found)
