# SPDX-License-Identifier: Apache-2.0
"""Input and output of the linear program: limits, positions of changes, solution.

A position is a stretch of a group's lifetime, numbered from the birth (see plan/items.py). To keep
the program small, a group may change its tier only after certain positions. These are dense near
the group's uses; further away, where a slightly earlier or later move is equally good, the
distances between them grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.policies.lp.groups import Groups

GRIDS = ((3, 0.4), (2, 1.0), (1, 3.0))
"""(n, share) of each grid, the finest grid first. A group may change its tier after a position
with a use, after each of the n positions that follow it, and after each of the n + 1 positions
before the next use. Further away, the permitted positions become sparser: if one of them is d
positions away from the use, the next one is about max(1, share * d) positions further away."""

COLUMNS_MAX = (18_000, 40_000)
"""Limits on the number of the program's columns with the first and with the second grid. If there
are more columns, the next grid is used; the last grid has no limit."""

UNIT_PAGES = 256.0
"""The solver's unit of memory: 1 MiB of 4 KiB pages, so that coefficients are of similar size."""


@dataclass(frozen=True)
class Limits:
    """Limits on the time and the memory that a schedule may use.

    A program that computes a bound is generous: it has only the constraints of the timing model. At
    a pressure point, it may use room that demotions of the same stretch have freed, if there was
    time for these demotions between the beginning of the stretch and the point. It may move a group
    in the stretch of the group's birth or death. One page can be in flight when a stretch begins,
    so a stretch may move one page more than its time allows. A plan's program is stricter: at every
    pressure point, the fast pages fit both before and after the moves of the point's stretch. It
    moves a group in a stretch only if the group is alive both at the beginning and at the end of
    the stretch and, on paged tiers, is not used in the stretch.
    """

    times_ns: Floats
    """(S,): time of each stretch with all memory fast; may include the time of births."""

    promote_ns: float
    """Time to promote a page; infinite: no page is moved."""

    demote_ns: float
    """Time to demote a page; infinite: no page is moved."""

    capacity_pages: int
    """Size of fast memory."""

    birth_ns: float = 0.0
    """Time to fault a page in; 0: the time of births is not counted. A generous program ignores
    this time."""

    iterations_max: int | None = None
    """Limit on the solver's iterations; None: unlimited. The limit is on the work and not on the
    time, so that the plan does not depend on the load of the machine."""

    generous: bool = False
    """Whether the program computes a bound; see above."""

    hidden_ns: Floats | None = None
    """(S,): AccessCosts.hidden_ns; None: accesses do not overlap with other work."""

    @property
    def in_flight_pages(self) -> float:
        """Number of pages that a stretch may move in addition to the pages for which it has
        time."""
        return 1.0 if self.generous and np.isfinite(self.promote_ns) else 0.0

    @property
    def demotion_weight(self) -> float:
        """Time to demote a page, divided by the time to promote a page."""
        return self.demote_ns / self.promote_ns if np.isfinite(self.promote_ns) else 1.0

    @property
    def in_flight_weight(self) -> float:
        """Number of promotions that take as long as moving in_flight_pages pages in the slower
        direction."""
        return self.in_flight_pages * max(1.0, self.demotion_weight)


@dataclass(frozen=True)
class Prices:
    """Dual values of the program: the time, in ns, that a step saves if a limit is raised by one
    page (`hidden`: by one ns)."""

    moves: Floats
    """(S,): price of the capacity to promote one more page in the stretch."""

    boundaries: Floats
    """(S,): price of room for one more page at the boundary."""

    points: Floats
    """(C,): price of room for one more page at the pressure point. This is the price of the limit
    that counts all demotions of the point's stretch as done."""

    hidden: Floats
    """(S,): time by which each stretch becomes shorter if it hides one more ns of slow accesses; 0
    if accesses do not overlap with other work."""

    timed_points: Floats
    """(C,): price of room for one more page at the pressure point. This is the price of the limit
    that counts only the demotions for which there was time before the point."""

    kept: Floats
    """(S, G): price of one more page that a fault fetches at the position of the group's lifetime,
    and that a promotion keeps (fetched.py); 0 where the program has no such column."""

    def for_groups(self, which: Integers, many: int) -> Prices:
        """Convert prices of a program with only the groups `which` to prices for `many` groups."""
        kept = np.zeros((len(self.kept), many))
        kept[:, which] = self.kept
        return replace(self, kept=kept)


@dataclass(frozen=True)
class Solution:
    """The program's optimum."""

    fast_pages: Floats
    """(S, G): fast pages of each group by position of its lifetime; 0 after the lifetime."""

    step_ns: float
    """Step time according to the program."""

    prices: Prices
    """The prices are meaningful for a generous program only."""

    taken: Floats = field(default_factory=lambda: np.zeros(0))
    """(N,): the share of each option that is taken, 0..1 (options.py)."""


Changes = list[Integers]
"""For each group, the ascending positions of its lifetime after which it may change its tier."""


def following_segments(segment: Integers, persistent: bool) -> Integers:
    """For each position of a group, the segment after the position's moves. A segment is the part
    of the lifetime between two of the group's Changes. segment: the segment of each position."""
    found: Integers = np.append(segment[1:], segment[0] if persistent else segment[-1])
    return found


def changes_of(groups: Groups, generous: bool = False) -> Changes:
    """The positions of changes on the finest grid (GRIDS) with which the program has few enough
    columns (COLUMNS_MAX)."""
    found: Changes = []
    for grid, most in zip_longest(GRIDS, COLUMNS_MAX):
        found = [_changes(groups, at, grid, generous) for at in range(len(groups.pages))]
        # Each change has two columns: one for the part of the lifetime that ends with the change,
        # and one for the demotions at the change.
        if most is None or 2 * sum(len(positions) for positions in found) <= most:
            break
    return found


def _changes(groups: Groups, group: int, grid: tuple[int, float], generous: bool) -> Integers:
    length = int(groups.length[group])
    uses = np.flatnonzero(groups.used[:length, group]).tolist()
    found: set[int] = set()
    if groups.persistent[group]:
        for use, following in zip(uses, [*uses[1:], uses[0] + length], strict=True):
            found |= {position % length for position in _spaced(use, following, grid)}
    else:
        # Position 0 (the birth) and the last position count as uses.
        for use, following in zip([0, *uses], [*uses, length - 1], strict=True):
            found |= _spaced(use, following, grid)
        # A plan can't move a group in the stretch of its death. A generous program can; it has
        # additional columns for these moves (program.py). A plan can't move a group in the stretch
        # of its birth either, because the stretch's boundary comes before the birth.
        first = 0 if generous else 1
        found = {position for position in found if first <= position < length - 1}
    if groups.paged and not generous:
        # A plan can't evict a page in a stretch that uses the page. A promotion in such a stretch
        # would be useless, because the first access faults and so fetches the page anyway.
        found -= set(uses)
    return np.array(sorted(found), dtype=np.int64)


def _spaced(begin: int, end: int, grid: tuple[int, float]) -> set[int]:
    """The permitted positions in [begin, end), dense near the uses `begin` and `end`; see GRIDS."""
    near, widen = grid
    found: set[int] = set()
    away = 0
    while begin + away < end:
        found |= {begin + away, end - 1 - away}
        away += 1 if away < near else max(1, int(away * widen))
    return found
