# SPDX-License-Identifier: Apache-2.0
"""The linear program: how much of each group is fast in each stretch, so that a step is shortest.

For plans, and generously for the bound. A group changes only at some positions of
its life, close to its uses one by one, further away at wider steps: moves far from
every use are as good a little earlier or later. That makes the program small.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.stdout import silent_stdout
from sentineld.model.arrays import Floats, Integers
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.pool import Columns, passing_of, pool_rows

GRIDS = ((3, 0.4), (2, 1.0), (1, 3.0))
"""(positions next to a use at which a group may change one by one; further away the next one is by
this part of the distance further), the finest one first."""

COLUMNS_MAX = (18_000, 40_000)
"""Of each grid's program; a larger one takes the next grid, and the last grid what is left."""

MOVE_WORTH = 0.02
"""What a plan charges for a move, of the time that it takes or that a use of a slow page costs,
whichever is less: no move for its own sake."""

EARLY_WORTH = 0.005
"""What a plan gains at most in the same measure for a page that comes or goes sooner: so much if
it is promoted halfway between two uses and not just before the second, or demoted just after the
first. It makes the difference between moves that are as good, and those that come early stand
steps whose stretches take other times than foreseen."""

UNIT_PAGES = 256.0
"""The solver's unit of memory: a MiB of small pages."""

TIME_LIMIT_S = 100.0
"""For one run of the solver, by the clock: the last resort, for steps beyond all measure. The five
runs that a plan takes at most end before the daemon gives up on its planning process."""


@dataclass(frozen=True)
class Limits:
    """What may be used. times_ns: (S,), all-fast. page_ns: for a page to move, infinite: none does.
    birth_ns: for one to be made, 0: not counted; of no meaning to a generous program.
    capacity_pages: of fast memory. iterations_max: of the solver, None: as many as it takes. They
    are work, not time: how much is planned must not depend on who else is on the machine.

    generous: what the timing model alone demands. Room that demotions make in a stretch, as
    far as there was time for them, can be taken in it; moves can begin and end in a stretch of
    birth or death; and a page may have been in flight when a stretch begins. Else what a plan has
    to keep beside it: at every crowd there is room before and after the moves of its stretch,
    and nothing moves in a stretch in which it is not alive at both ends.
    """

    times_ns: Floats
    page_ns: float
    capacity_pages: int
    birth_ns: float = 0.0
    iterations_max: int | None = None
    generous: bool = False

    @property
    def in_flight_pages(self) -> float:
        """What may be moved in a stretch beyond its time."""
        return 1.0 if self.generous and np.isfinite(self.page_ns) else 0.0


@dataclass(frozen=True)
class Prices:
    """What a little more of everything would save, in ns a page. moves: (S,). boundaries: (S,),
    room at them. crowds: (C,), room there beside what is demoted in the stretch; timely: (C,),
    beside what can have been demoted by then."""

    moves: Floats
    boundaries: Floats
    crowds: Floats
    timely: Floats


@dataclass(frozen=True)
class Fluid:
    """fast_pages: (S, G), by position of the group's life, 0 beyond its end. step_ns: what the
    program says of the step. prices: of a generous program, else of no meaning."""

    fast_pages: Floats
    step_ns: float
    prices: Prices


Changes = list[Integers]
"""For each group the positions of its life, in order, after which it may be moved."""


def changes_of(groups: Groups, generous: bool = False) -> Changes:
    """By the finest of the grids whose program isn't too large."""
    found: Changes = []
    for grid, most in zip_longest(GRIDS, COLUMNS_MAX):
        found = [_changes(groups, at, grid, generous) for at in range(len(groups.pages))]
        # A column for each segment and one for what is demoted at its end.
        if most is None or 2 * sum(len(positions) for positions in found) <= most:
            break
    return found


def solve(groups: Groups, limits: Limits, changes: Changes, who: str) -> Fluid | None:
    """Minimise the sum of the stretches' times D; None if the solver finds no answer within
    its limits.

    Variables: f, what is fast of each group in each segment between two changes; d, what is
    demoted at each change; D; of a generous program also e, what is demoted in a stretch of
    death, and what fast pages save of each stretch; where births cost anything, what the dead have
    left in fast memory at each crowd, what is made anew for it, and what of each group is born slow
    and dies fast. who: needs scipy, says the SentinelError where there is none.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        hint = "apt install python3-scipy"
        raise SentinelError(
            "failed",
            f"{who} needs scipy, which is not installed",
            hint if limits.generous else f"{hint}, or take the policy sentinel",
        ) from None
    program = _Program(groups, limits, changes)
    matrix, least, goal = program.constraints()
    with silent_stdout():
        answer = linprog(
            goal,
            A_ub=matrix,
            b_ub=least,
            bounds=np.column_stack([np.zeros(len(goal)), program.upper]),
            method="highs-ds",
            options={"maxiter": limits.iterations_max, "time_limit": TIME_LIMIT_S},
        )
    if answer.status != 0 or answer.x is None:
        return None
    return program.fluid(answer.x, -answer.ineqlin.marginals)


def _changes(groups: Groups, group: int, grid: tuple[int, float], generous: bool) -> Integers:
    """A plan's are not in the stretch of birth, for its boundary passes before, nor in the last."""
    length = int(groups.length[group])
    uses = np.flatnonzero(groups.cost_ns[:length, group] > 0).tolist()
    found: set[int] = set()
    if groups.persistent[group]:
        for use, following in zip(uses, [*uses[1:], uses[0] + length], strict=True):
            found |= {position % length for position in _spaced(use, following, grid)}
    else:
        # After its last use it can only make room, and the sooner the better.
        for use, following in zip([0, *uses], [*uses, length - 1], strict=True):
            found |= _spaced(use, following, grid)
        first = 0 if generous else 1
        found = {position for position in found if first <= position < length - 1}
    return np.array(sorted(found), dtype=np.int64)


def _spaced(begin: int, end: int, grid: tuple[int, float]) -> set[int]:
    near, widen = grid
    found: set[int] = set()
    away = 0
    while begin + away < end:
        found |= {begin + away, end - 1 - away}
        away += 1 if away < near else max(1, int(away * widen))
    return found


class _Program:
    """The rows and columns.

    Rows: times, moves, boundaries and savings of each stretch; crowds before the moves of their
    stretch, and after them (generous: by the time that has passed); and what a group's columns
    have to do with each other.
    """

    def __init__(self, groups: Groups, limits: Limits, changes: Changes) -> None:
        self._groups, self._limits, self._changes = groups, limits, changes
        self._count = count = len(limits.times_ns)
        self._unit_ns = max(float(limits.times_ns.sum()) / max(count, 1), 1.0)
        self._segments: Changes = []
        self._first: list[int] = []
        total = 0
        for at, positions in enumerate(changes):
            segment = np.searchsorted(positions, np.arange(int(groups.length[at])), side="left")
            many = len(positions) + 1
            if groups.persistent[at] and len(positions):
                many = len(positions)
                segment %= many
            self._segments.append(segment)
            self._first.append(total)
            total += many
        self._held = total
        self._moved = sum(len(positions) for positions in changes)
        passing = np.flatnonzero(~groups.persistent) if limits.generous else np.zeros(0, np.int64)
        self._leaving = {group: at for at, group in enumerate(passing.tolist())}
        self._durations = total + self._moved + len(passing)
        self._saved = self._durations + count
        self._left = self._saved + (count if limits.generous else 0)
        crowds = len(groups.crowds.event)
        priced = limits.birth_ns > 0 and not limits.generous
        self._passing = passing_of(groups) if priced else None
        self._birth = limits.birth_ns * UNIT_PAGES / self._unit_ns
        self._made = self._left + crowds
        self._astray = self._made + crowds
        pool = 2 * crowds + len(self._passing.rows) if self._passing else 0
        self.upper = np.full(self._left + pool, np.inf)
        self._rows: list[Integers] = []
        self._columns: list[Integers] = []
        self._values: list[Floats] = []
        self._moving, self._boundaries, self._saving = count, 2 * count, 3 * count
        self._before, self._after = 4 * count, 4 * count + crowds
        self._own = self._after + crowds

    def _put(self, row: Integers, column: Integers, value: float | Floats) -> None:
        self._rows.append(row)
        self._columns.append(column)
        self._values.append(np.broadcast_to(np.asarray(value, np.float64), row.shape))

    def constraints(self) -> tuple[object, Floats, Floats]:
        """(matrix, limits, goal) of matrix @ x <= limits."""
        from scipy.sparse import coo_matrix

        groups, limits, count = self._groups, self._limits, self._count
        move = limits.page_ns * UNIT_PAGES / self._unit_ns
        slow = np.zeros(count)
        demoted = self._held
        for at in range(len(groups.pages)):
            slow += self._time(at)
            self._room(at, demoted)
            self._moves(at, demoted)
            demoted += len(self._changes[at])
        stretches = np.arange(count)
        duration = self._durations + stretches
        self._put(stretches, duration, -1.0)
        self._put(self._moving + stretches, duration, -1.0 / move)
        own = self._durations - self._held
        births = self._own + own
        bounds = np.zeros(births + (self._births(births) if self._passing else 0))
        bounds[:count] = -(limits.times_ns / self._unit_ns + slow)
        bounds[self._moving : self._boundaries] = limits.in_flight_pages / UNIT_PAGES
        capacity = max(limits.capacity_pages, 0) / UNIT_PAGES
        bounds[self._boundaries : self._saving] = capacity
        bounds[self._before : self._own] = capacity
        goal = np.zeros(len(self.upper))
        if limits.generous:
            spent = limits.times_ns / self._unit_ns + slow
            bounds[self._after : self._own] += self._timely(spent, move)
        else:
            costs = groups.cost_ns[groups.cost_ns > 0]
            use = float(costs.mean()) * UNIT_PAGES / self._unit_ns if len(costs) else 0.0
            goal[self._held : self._held + self._moved] = 2 * MOVE_WORTH * min(move, use)
            for at in range(len(groups.pages)):
                np.add.at(
                    goal, self._first[at] + self._segments[at], self._early(at) * min(move, use)
                )
        goal[self._durations : self._saved] = 1.0
        # Not in the durations: that pages are moved meanwhile would make births worth something
        # where a plan's addresses don't need them.
        goal[self._made :] = self._birth
        matrix = coo_matrix(
            (
                np.concatenate(self._values),
                (np.concatenate(self._rows), np.concatenate(self._columns)),
            ),
            shape=(len(bounds), len(goal)),
        ).tocsr()
        self._needed = np.ones(len(bounds), np.bool_)
        # A plan has room at crowds, and so at boundaries; where nobody is born or dies, its crowd
        # after the moves is the next one before them (but for what the dead have left till then).
        self._needed[self._boundaries : self._before] = limits.generous
        every = limits.generous or self._passing is not None
        self._needed[self._after : self._own] = self._crowd_changes() | every
        return matrix[self._needed], bounds[self._needed], goal

    def fluid(self, answer: Floats, prices: Floats) -> Fluid:
        """The solution, by position. prices: of the needed rows."""
        groups = self._groups
        fast = np.zeros((self._count, len(groups.pages)))
        for at, segment in enumerate(self._segments):
            fast[: len(segment), at] = answer[self._first[at] + segment] * UNIT_PAGES
        step = answer[self._durations : self._saved].sum()
        step_ns = float(step + answer[self._made :].sum() * self._birth) * self._unit_ns
        every = np.zeros(len(self._needed))
        every[self._needed] = prices * self._unit_ns / UNIT_PAGES
        return Fluid(
            fast,
            step_ns,
            Prices(
                moves=every[self._moving : self._boundaries],
                boundaries=every[self._boundaries : self._saving],
                crowds=every[self._before : self._after],
                timely=every[self._after : self._own],
            ),
        )

    def _time(self, at: int) -> Floats:
        """What is fast is not paid for; returns what all of it would cost if it were slow."""
        groups = self._groups
        length, stretch = int(groups.length[at]), groups.stretches(at)
        cost = groups.cost_ns[:length, at] * UNIT_PAGES / self._unit_ns
        uses = np.flatnonzero(cost > 0)
        # What is saved bounds the times, or is one of the columns that do.
        row = stretch[uses] + (self._saving if self._limits.generous else 0)
        self._put(row, self._first[at] + self._segments[at][uses], -cost[uses])
        slow: Floats = np.zeros(self._count)
        np.add.at(slow, stretch[uses], cost[uses] * groups.pages[at] / UNIT_PAGES)
        return slow

    def _early(self, at: int) -> Floats:
        """EARLY_WORTH by position: paid in the first half of the time between two uses, gained in
        the second; nothing of it where the page is kept all the time."""
        groups, length = self._groups, int(self._groups.length[at])
        uses = np.flatnonzero(groups.cost_ns[:length, at] > 0)
        passed = np.concatenate([[0.0], np.cumsum(self._limits.times_ns[groups.stretches(at)])])
        found: Floats = np.zeros(length)
        if groups.persistent[at]:
            ends = [*uses.tolist(), int(uses[0]) + length]
        else:
            ends = sorted({0, *uses.tolist(), length})
        whole = np.concatenate([passed, passed[1:] + passed[-1]])
        for begin, end in pairwise(ends):
            inside = np.arange(begin + 1, end)
            span = float(whole[end] - whole[begin + 1]) if len(inside) else 0.0
            if span <= 0:
                continue
            low, high = (np.minimum(whole[inside + late], whole[-1]) for late in (0, 1))
            share = 2 * EARLY_WORTH * (high - low) / span
            first = (low + high) / 2 < whole[begin + 1] + span / 2
            # After the last use of a life that ends there is nothing to be ready for.
            first |= (not groups.persistent[at]) & (end == length)
            found[inside % length] += np.where(first, share, -share)
        return found

    def _timely(self, spent: Floats, move: float) -> Floats:
        """What may be held at each crowd beyond the capacity: what can have been moved by then, in
        what D is longer than the stretch itself (a wait comes first), and in the share of it that
        has passed. Puts the columns; returns what is constant. spent: (S,), if all is slow."""
        crowds, count = self._groups.crowds, self._count
        stretches = np.arange(count)
        self._put(stretches, self._saved + stretches, -1.0)
        self._put(self._saving + stretches, self._saved + stretches, 1.0)
        stretch = np.repeat(stretches, np.diff(crowds.first))
        row = self._after + np.arange(len(stretch))
        self._put(row, self._durations + stretch, -1.0 / move)
        self._put(row, self._saved + stretch, -(1.0 - crowds.share) / move)
        in_flight = self._limits.in_flight_pages / UNIT_PAGES
        constant: Floats = in_flight - (1.0 - crowds.share) * spent[stretch] / move
        return constant

    def _room(self, at: int, demoted: int) -> None:
        """demoted: the first column of what the group's changes demote."""
        groups, segment, first = self._groups, self._segments[at], self._first[at]
        positions = self._changes[at]
        crowd, position = groups.met(at)
        self._put(self._before + crowd, first + segment[position], 1.0)
        if not self._limits.generous:
            following = self._following(at)
            self._put(self._after + crowd, first + following[position], 1.0)
            return
        stretch = groups.stretches(at)
        begins = np.arange(len(stretch)) if groups.persistent[at] else np.arange(1, len(stretch))
        self._put(self._boundaries + stretch[begins], first + segment[begins], 1.0)
        change = np.searchsorted(positions, position)
        moving = np.isin(position, positions)
        self._put(self._before + crowd[moving], demoted + change[moving], -1.0)
        self._put(self._after + crowd, first + segment[position], 1.0)
        if at in self._leaving:
            last = position == len(stretch) - 1
            column = np.full(int(last.sum()), self._held + self._moved + self._leaving[at])
            self._put(self._before + crowd[last], column, -1.0)

    def _moves(self, at: int, demoted: int) -> None:
        groups, segment, first = self._groups, self._segments[at], self._first[at]
        positions, stretch = self._changes[at], groups.stretches(at)
        pages = groups.pages[at] / UNIT_PAGES
        self.upper[first : first + int(segment.max()) + 1] = pages
        column = demoted + np.arange(len(positions))
        self.upper[column] = pages
        here, there = first + segment[positions], first + self._following(at)[positions]
        row = self._moving + stretch[positions]
        self._put(row, there, 1.0)
        self._put(row, here, -1.0)
        self._put(row, column, 2.0)
        # What is promoted is not negative.
        row = self._own + column - self._held
        self._put(row, here, 1.0)
        self._put(row, there, -1.0)
        self._put(row, column, -1.0)
        if at in self._leaving:
            leaving = np.array([self._held + self._moved + self._leaving[at]])
            self.upper[leaving] = pages
            self._put(np.array([self._moving + int(stretch[-1])]), leaving, 1.0)
            row = self._own + leaving - self._held
            self._put(row, leaving, 1.0)
            self._put(row, np.array([first + int(segment[-1])]), -1.0)

    def _births(self, row: int) -> int:
        """From this row on; returns how many rows there are."""
        crowds, found = self._groups.crowds, self._passing
        assert found is not None
        first, last = (
            np.array(
                [self._first[at] + self._segments[at][end] for at in found.rows.tolist()], np.int64
            )
            for end in (0, -1)
        )
        columns = Columns(first, last, self._left, self._made, self._astray)
        entries, count = pool_rows(found, columns, len(crowds.event))
        for rows, column, value in entries:
            self._put(row + rows, column, value)
        each = np.arange(len(crowds.event))
        self._put(self._before + each, self._left + each, 1.0)
        self._put(self._after + each, self._left + each, 1.0)
        return count

    def _following(self, at: int) -> Integers:
        """The segment after the moves of each position."""
        segment = self._segments[at]
        found: Integers = np.append(
            segment[1:], segment[0] if self._groups.persistent[at] else segment[-1]
        )
        return found

    def _crowd_changes(self) -> npt.NDArray[np.bool_]:
        groups, count = self._groups, self._count
        busy = np.zeros(count, np.bool_)
        passing = ~groups.persistent
        busy[(groups.birth + groups.length - 1)[passing] % count] = True
        found: npt.NDArray[np.bool_] = np.repeat(busy, np.diff(groups.crowds.first))
        return found
