# SPDX-License-Identifier: Apache-2.0
"""The linear program that finds the shortest step: how much of each group is fast in each stretch.

Policies make plans with this program. With `generous` set, it computes the step-time bound; see
Limits in policies/lp/problem.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sentineld.base.stdout import silent_stdout
from sentineld.model.arrays import Floats, Integers, Mask
from sentineld.policies.lp.clean import clean_columns, clean_rows
from sentineld.policies.lp.early import early_worth
from sentineld.policies.lp.fetched import kept_columns, kept_rows
from sentineld.policies.lp.groups import Groups
from sentineld.policies.lp.options import Options, option_rows
from sentineld.policies.lp.places import Places
from sentineld.policies.lp.pool import Entry, PoolColumns, pool_rows, transient_groups_of
from sentineld.policies.lp.problem import (
    UNIT_PAGES,
    Changes,
    Limits,
    Prices,
    Solution,
    following_segments,
)
from sentineld.policies.require import scipy_missing

MOVE_WORTH = 0.02
"""Cost of a move in a plan's program, to prevent needless moves. The cost is this share of the
time that the move takes or of the time that one use of a slow page costs, whichever is less. The
cost of a demotion includes the cost of promoting the page again later; a promotion itself costs
nothing."""

TIME_LIMIT_S = 100.0
"""Wall-clock limit on one run of the solver, a last resort for extremely large steps. Making a plan
takes at most five runs; all five together end within the daemon's default plan_timeout_s."""


def solve(
    groups: Groups,
    limits: Limits,
    changes: Changes,
    needed_by: str,
    clean: Mask | None = None,
    options: Options | None = None,
) -> Solution | None:
    """Minimise the sum of the stretches' durations.

    needed_by: name of the policy or bound that needs scipy, for the error message.
    clean: (G,): groups whose clean pages can be demoted without a write; None: no group, which
        makes the program smaller.
    options: recomputations from which a generous program may choose.

    Returns None if the solver finds no optimum within its limits. Raises SentinelError if scipy is
    not installed.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        instead = "" if limits.generous else "sentinel+spill"
        raise scipy_missing(needed_by, instead) from None
    program = _Program(groups, limits, changes, clean, options)
    matrix, most, goal = program.constraints()
    with silent_stdout():
        answer = linprog(
            goal,
            A_ub=matrix,
            b_ub=most,
            bounds=np.column_stack([program.lower, program.upper]),
            method="highs-ds",
            options={"maxiter": limits.iterations_max, "time_limit": TIME_LIMIT_S},
        )
    if answer.status != 0 or answer.x is None:
        return None
    return program.solution(answer.x, -answer.ineqlin.marginals)


class _Program:
    """The program's rows and columns.

    The unit of time is the mean time of a stretch; the unit of memory is UNIT_PAGES. A change is a
    position after which a group may change its tier (Changes in problem.py). A segment is the part
    of a group's lifetime between two of its changes. "Generous" marks columns and rows that only a
    generous program uses.

    Columns, in this order:

    - the fast part of each group in each of its segments;
    - the part of each group that is demoted at each of its changes;
    - generous: the part of each transient group that is demoted in the stretch of its death;
    - the duration of each stretch;
    - generous: the time that fast pages save in each stretch;
    - if accesses overlap with other work: the time of slow accesses that each stretch does not
      hide;
    - in a plan's program, if births cost time: the dead pages left in fast memory at each pressure
      point, the pages that births fault in at each pressure point, and the part of each transient
      group that is slow at the birth and fast at the death;
    - on paged tiers, for the groups chosen by the caller of solve(): the clean pages in each
      segment in which the group's pages can be clean, and the clean pages that are demoted at each
      change after such a segment and (generous) in the stretch of the death;
    - generous, on paged tiers: the pages that a promotion keeps after a fault has fetched them, at
      each change in a stretch that uses the group;
    - if there are options: the share of each option that is taken.

    constraints() drops redundant rows (see _needed_rows()). All rows, in this order:

    - the time of each stretch;
    - the moves of each stretch;
    - generous: the room at each boundary;
    - generous: the savings of each stretch;
    - the room at each pressure point before the moves of its stretch;
    - the room at each pressure point after the moves of its stretch (generous: after the
      demotions that had time to complete);
    - the part promoted at each change, which is not negative;
    - generous: the part demoted in the stretch of each death, which is at most the fast part;
    - generous: the part demoted at each change, which is at most the fast part;
    - the pool of dead pages, if births cost time;
    - the clean pages;
    - the pages that promotions keep;
    - if there are options: the fast part of each segment of the groups that options change, which
      is at most the group's pages;
    - if accesses overlap with other work: the time of slow accesses that each stretch does not
      hide.

    If no pages can move while accesses to slow pages use the slow tier, the row of a stretch's
    moves also contains these accesses. On paged tiers, these accesses are the faults. In a plan's
    program for paged tiers, the row also contains the pages that have to be written to the file:
    pages that a fault has fetched and the stretch has changed, and pages that are born slow and
    outlive the stretch of their birth.
    """

    def __init__(
        self,
        groups: Groups,
        limits: Limits,
        changes: Changes,
        clean: Mask | None = None,
        options: Options | None = None,
    ) -> None:
        self._groups, self._limits, self._changes = groups, limits, changes
        self._options = options
        self._most_pages = groups.pages if options is None else options.most_pages(groups)
        self._count = count = len(limits.times_ns)
        self._unit_ns = max(float(limits.times_ns.sum()) / max(count, 1), 1.0)
        # For each group: the segment of each position, and the column of the group's first segment.
        self._segments: list[Integers] = []
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
        # The first column of each kind.
        self._demotions = total
        self._dying = total + sum(len(positions) for positions in changes)
        transient = np.flatnonzero(~groups.persistent) if limits.generous else np.zeros(0, np.int64)
        self._dying_column = {
            group: self._dying + at for at, group in enumerate(transient.tolist())
        }
        self._durations = self._dying + len(transient)
        self._saved = self._durations + count
        points = len(groups.points.event)
        self._shown = self._saved + (count if limits.generous else 0)
        self._left = self._shown + (count if limits.hidden_ns is not None else 0)
        self._made = self._left + points
        self._changes_tier = self._made + points
        priced = limits.birth_ns > 0 and not limits.generous
        self._transient = transient_groups_of(groups) if priced else None
        self._birth = limits.birth_ns * UNIT_PAGES / self._unit_ns
        pool = 2 * points + len(self._transient.rows) if self._transient else 0
        self._clean = self._left + pool
        clean = np.zeros(len(groups.pages), np.bool_) if clean is None else clean
        self._clean_columns = clean_columns(
            groups, changes, self._segments, clean, set(self._dying_column), self._clean
        )
        self._kept = self._clean + self._clean_columns.count
        self._kept_columns = kept_columns(groups, changes)
        self._taken = self._kept + len(self._kept_columns.group)
        taken = 0 if options is None else len(options.stretch)
        self.upper = np.full(self._taken + taken, np.inf)
        self.upper[self._taken :] = 1.0
        self.lower = np.zeros(len(self.upper))
        if options is not None:
            # Recomputation lengthens a stretch, so it counts as negative savings.
            self.lower[self._saved : self._shown] = -np.inf
        if limits.generous and limits.hidden_ns is not None:
            # If accesses overlap with other work, the savings can be negative: a stretch can take
            # longer than with everything slow.
            self.lower[self._saved : self._shown] = -np.inf
        # The first row of each kind; the rows of the times begin at 0.
        self._moving, self._boundaries, self._saving = count, 2 * count, 3 * count
        self._before = 4 * count
        self._after = self._before + points
        self._promotions = self._after + points
        self._demoted = self._promotions + self._durations - self._demotions
        self._pool = self._demoted + (self._dying - self._demotions if limits.generous else 0)
        # If everything is slow, accesses use the slow tier for a part of each stretch, and no pages
        # can move during this part. (S,), in UNIT_PAGES: the memory that could otherwise be
        # promoted during this part.
        self._kept_back: Floats = np.zeros(count)
        # (S,), in units of time: AccessCosts.hideable_ns of each stretch if everything is slow.
        self._hideable: Floats = np.zeros(count)
        self._rows: list[Integers] = []
        self._columns: list[Integers] = []
        self._values: list[Floats] = []

    def _put(self, row: Integers, column: Integers, value: float | Floats) -> None:
        self._rows.append(row)
        self._columns.append(column)
        self._values.append(np.broadcast_to(np.asarray(value, np.float64), row.shape))

    def _put_all(self, entries: Iterable[Entry]) -> None:
        for rows, columns, value in entries:
            self._put(rows, columns, value)

    def constraints(self) -> tuple[object, Floats, Floats]:
        """(matrix, most, goal): minimise goal @ x subject to matrix @ x <= most."""
        from scipy.sparse import coo_matrix

        limits, count = self._limits, self._count
        move = limits.promote_ns * UNIT_PAGES / self._unit_ns
        slow = np.zeros(count)
        demotions = self._demotions
        for at in range(len(self._groups.pages)):
            slow += self._put_costs(at)
            self._put_room(at, demotions)
            self._put_moves(at, demotions)
            demotions += len(self._changes[at])
        stretches = np.arange(count)
        duration = self._durations + stretches
        self._put(stretches, duration, -1.0)
        self._put(self._moving + stretches, duration, -1.0 / move)
        self._showing = self._put_clean(self._pool + (self._put_pool() if self._transient else 0))
        self._keeping = self._showing
        limited = self._put_kept()
        self._showing += len(limited)
        if self._options is not None:
            most_fast = self._put_options(self._options, self._showing)
            self._showing += len(most_fast)
            limited = np.append(limited, most_fast)
        all_slow = limits.times_ns / self._unit_ns + slow
        if limits.hidden_ns is None:
            most = np.zeros(self._showing)
        else:
            most = np.zeros(self._showing + count)
            all_slow += self._put_shown(limits.hidden_ns / self._unit_ns, most)
        most[self._showing - len(limited) : self._showing] = limited
        most[:count] = -all_slow
        most[self._moving : self._boundaries] = limits.in_flight_weight / UNIT_PAGES
        most[self._moving : self._boundaries] -= self._kept_back
        capacity = max(limits.capacity_pages, 0) / UNIT_PAGES
        most[self._boundaries : self._saving] = capacity
        most[self._before : self._promotions] = capacity
        if limits.generous:
            most[self._after : self._promotions] += self._put_timed(
                all_slow, move * limits.demotion_weight
            )
        goal = self._goal(move)
        matrix = coo_matrix(
            (
                np.concatenate(self._values),
                (np.concatenate(self._rows), np.concatenate(self._columns)),
            ),
            shape=(len(most), len(goal)),
        ).tocsr()
        self._needed = self._needed_rows(len(most))
        return matrix[self._needed], most[self._needed], goal

    def _goal(self, move: float) -> Floats:
        """The coefficient of each column in the goal, which the solver minimises. move: time to
        promote UNIT_PAGES pages, in the program's unit of time."""
        groups = self._groups
        goal = np.zeros(len(self.upper))
        if not self._limits.generous:
            costs = groups.cost_ns[groups.cost_ns > 0]
            use = float(costs.mean()) * UNIT_PAGES / self._unit_ns if len(costs) else 0.0
            both = 1.0 + self._limits.demotion_weight
            goal[self._demotions : self._dying] = both * MOVE_WORTH * min(move, use)
            for of in self._clean_columns.of_groups:
                goal[list(of.demoted.values())] = (1.0 - both) * MOVE_WORTH * min(move, use)
            for at, segment in enumerate(self._segments):
                early = early_worth(groups, at, self._limits.times_ns)
                np.add.at(goal, self._first[at] + segment, early * min(move, use))
        goal[self._durations : self._saved] = 1.0
        # The time of births is a separate cost and not part of the durations. Otherwise, needless
        # page faults could pay off in the program, because longer durations allow more moves.
        goal[self._made : self._clean] = self._birth
        return goal

    def _needed_rows(self, many: int) -> npt.NDArray[np.bool_]:
        """(R,): which of R rows are needed. A row that other rows imply is not needed."""
        needed = np.ones(many, np.bool_)
        # A plan that has room at all pressure points also has room at boundaries. If no group dies
        # in a stretch, all pages that are fast after its moves are still fast before the moves of
        # the next stretch. So the next stretch's rows imply the row for the room after the moves,
        # unless there is a pool of dead pages, whose size can differ between the stretches.
        needed[self._boundaries : self._before] = self._limits.generous
        every = self._limits.generous or self._transient is not None
        needed[self._after : self._promotions] = self._points_with_deaths() | every
        return needed

    def solution(self, answer: Floats, prices: Floats) -> Solution:
        """Convert the solver's answer. prices: dual values of the needed rows."""
        groups = self._groups
        fast = np.zeros((self._count, len(groups.pages)))
        for at, segment in enumerate(self._segments):
            fast[: len(segment), at] = answer[self._first[at] + segment] * UNIT_PAGES
        step = answer[self._durations : self._saved].sum()
        step_ns = float(step + answer[self._made : self._clean].sum() * self._birth) * self._unit_ns
        every = np.zeros(len(self._needed))
        taken = answer[self._taken :]
        every[self._needed] = prices * self._unit_ns / UNIT_PAGES
        return Solution(
            fast,
            step_ns,
            Prices(
                moves=every[self._moving : self._boundaries],
                boundaries=every[self._boundaries : self._saving],
                points=every[self._before : self._after],
                hidden=self._hidden_prices(prices),
                timed_points=every[self._after : self._promotions],
                kept=self._kept_prices(every),
            ),
            taken,
        )

    def _hidden_prices(self, prices: Floats) -> Floats:
        """Prices.hidden, from the dual values of the needed rows."""
        if self._limits.hidden_ns is None:
            return np.zeros(self._count)
        return prices[-self._count :]

    def _kept_prices(self, every: Floats) -> Floats:
        """Prices.kept, from the prices of all rows."""
        columns = self._kept_columns
        found = np.zeros((self._count, len(self._groups.pages)))
        rows = self._keeping + np.arange(len(columns.group))
        found[columns.position, columns.group] = every[rows]
        return found

    def _put_costs(self, at: int) -> Floats:
        """Add the entries for the time that fast pages of a group save.

        Returns (S,), the direct cost of the group in each stretch if the whole group is slow.
        """
        groups = self._groups
        length, stretch = int(groups.length[at]), groups.stretches[at]
        cost = groups.direct_ns[:length, at] * UNIT_PAGES / self._unit_ns
        uses = np.flatnonzero(cost)
        # A generous program has columns for the savings; any other program subtracts the savings
        # from the times directly.
        row = stretch[uses] + (self._saving if self._limits.generous else 0)
        self._put(row, self._first[at] + self._segments[at][uses], -cost[uses])
        slow: Floats = np.zeros(self._count)
        np.add.at(slow, stretch[uses], cost[uses] * groups.pages[at] / UNIT_PAGES)
        if np.isfinite(self._limits.promote_ns):
            self._put_busy(at)
        return slow

    def _put_shown(self, hidden: Floats, most: Floats) -> Floats:
        """Add the rows and columns for the time of slow accesses that the stretches do not hide.

        hidden: (S,), the time that each stretch hides. most: the limits of all rows; this method
        sets the limits of the rows that it adds and, in a generous program, of the savings' rows.

        Returns (S,), the time to add to all_slow, which is the time of each stretch if everything
        is slow. In a generous program, the added time is the time that is not hidden. In a plan's
        program, it is 0, because the rows of the times already contain the columns of the time that
        is not hidden.
        """
        stretches = np.arange(self._count)
        for at, segment in enumerate(self._segments):
            groups = self._groups
            cost = groups.hideable_ns[: len(segment), at] * UNIT_PAGES / self._unit_ns
            uses = np.flatnonzero(cost)
            stretch = groups.stretches[at][uses]
            self._put(self._showing + stretch, self._first[at] + segment[uses], -cost[uses])
            np.add.at(self._hideable, stretch, cost[uses] * groups.pages[at] / UNIT_PAGES)
        shown = self._shown + stretches
        self._put(self._showing + stretches, shown, -1.0)
        most[self._showing :] = hidden - self._hideable
        if not self._limits.generous:
            self._put(stretches, shown, 1.0)
            return np.zeros(self._count)
        # Time that is not hidden reduces the time that fast pages save.
        all_slow: Floats = np.maximum(self._hideable - hidden, 0.0)
        self._put(self._saving + stretches, shown, 1.0)
        most[self._saving : self._before] = all_slow
        return all_slow

    def _put_busy(self, at: int) -> None:
        """Add a group to the rows of the stretches' moves: while accesses to the group's slow pages
        use the slow tier, no pages can move. On paged tiers, a plan's program also counts the
        writes of these pages to the file."""
        groups, limits = self._groups, self._limits
        length, stretch = int(groups.length[at]), groups.stretches[at]
        busy = groups.busy_ns[:length, at].copy()
        if groups.paged and not limits.generous:
            back = groups.back_ns[:length, at].copy()
            if not groups.persistent[at]:
                # Pages that are born slow are written to the file once if they are accessed in the
                # stretch of their birth and outlive it.
                outlives = length > 1 or groups.dies_in_birth_stretch[at]
                back[0] = limits.demote_ns * bool(busy[0] > 0 and outlives)
            busy += back
        pages = busy / limits.promote_ns
        used = np.flatnonzero(pages > 0)
        column = self._first[at] + self._segments[at][used]
        self._put(self._moving + stretch[used], column, -pages[used])
        np.add.at(self._kept_back, stretch[used], pages[used] * groups.pages[at] / UNIT_PAGES)

    def _places(self) -> Places:
        return Places(
            first=self._first,
            segments=self._segments,
            changes=self._changes,
            demotions=self._demotions,
            dying=self._dying_column,
            taken=self._taken,
            moving=self._moving,
            boundaries=self._boundaries,
            saving=self._saving,
            before=self._before,
            after=self._after,
        )

    def _put_clean(self, row: int) -> int:
        """Add the rows of clean pages. row: the first row. Returns the first row after them."""
        groups = self._groups
        for at, of in enumerate(self._clean_columns.of_groups):
            self.upper[list(of.segments.values())] = self._most_pages[at] / UNIT_PAGES
        entries, end = clean_rows(groups, self._clean_columns, self._places(), self._limits, row)
        self._put_all(entries)
        return end

    def _put_kept(self) -> Floats:
        """Add the rows of the pages that promotions keep. Returns these rows' limits."""
        entries, most = kept_rows(
            self._groups,
            self._kept_columns,
            self._places(),
            self._options,
            self._kept,
            self._keeping,
        )
        self._put_all(entries)
        return most

    def _put_options(self, options: Options, row: int) -> Floats:
        """Add the entries of the options' columns. row: the first of the rows that limit the fast
        parts of the groups that options change. Returns these rows' limits."""
        entries, most = option_rows(
            self._groups, options, self._places(), self._limits, self._unit_ns, row
        )
        self._put_all(entries)
        return most

    def _put_timed(self, all_slow: Floats, move: float) -> Floats:
        """Raise each pressure point's limit on fast pages: demotions make room within the stretch.

        The fast pages may exceed the capacity by the number of pages that can be demoted between
        the beginning of the stretch and the pressure point. The time for these moves is the sum of
        two times. The first is the wait at the beginning of the stretch, that is, the stretch's
        duration minus the time of its work. The second is the time of the work before the point:
        the point's `share` times the time of the work. The number of pages is a sum of terms: those
        that depend on columns are added to the matrix, and the sum of the constant ones is
        returned, (C,), in UNIT_PAGES.

        all_slow: (S,), time of each stretch if everything is slow.
        move: time to demote a unit of memory.
        """
        points, count = self._groups.points, self._count
        stretches = np.arange(count)
        self._put(stretches, self._saved + stretches, -1.0)
        self._put(self._saving + stretches, self._saved + stretches, 1.0)
        stretch = np.repeat(stretches, np.diff(points.first))
        row = self._after + np.arange(len(stretch))
        self._put(row, self._durations + stretch, -1.0 / move)
        self._put(row, self._saved + stretch, -(1.0 - points.share) / move)
        in_flight = self._limits.in_flight_pages / UNIT_PAGES
        constant: Floats = in_flight - (1.0 - points.share) * all_slow[stretch] / move
        return constant

    def _put_room(self, at: int, demotions: int) -> None:
        """Add the entries for a group's room. demotions: first column of the group's demotions."""
        groups, segment, first = self._groups, self._segments[at], self._first[at]
        positions = self._changes[at]
        point, position = groups.lived_points[at]
        self._put(self._before + point, first + segment[position], 1.0)
        if not self._limits.generous:
            following = following_segments(segment, bool(groups.persistent[at]))
            self._put(self._after + point, first + following[position], 1.0)
            return
        stretch = groups.stretches[at]
        begins = np.arange(len(stretch)) if groups.persistent[at] else np.arange(1, len(stretch))
        self._put(self._boundaries + stretch[begins], first + segment[begins], 1.0)
        change = np.searchsorted(positions, position)
        moving = np.isin(position, positions)
        self._put(self._before + point[moving], demotions + change[moving], -1.0)
        self._put(self._after + point, first + segment[position], 1.0)
        if at in self._dying_column:
            last = position == len(stretch) - 1
            column = np.full(int(last.sum()), self._dying_column[at])
            self._put(self._before + point[last], column, -1.0)

    def _put_moves(self, at: int, demotions: int) -> None:
        """Add the entries for a group's moves. demotions: first column of the group's demotions."""
        groups, segment, first = self._groups, self._segments[at], self._first[at]
        positions, stretch = self._changes[at], groups.stretches[at]
        pages = self._most_pages[at] / UNIT_PAGES
        self.upper[first : first + int(segment.max()) + 1] = pages
        column = demotions + np.arange(len(positions))
        self.upper[column] = np.where(groups.stays[positions, at], 0.0, pages)
        here, there = (
            first + segment[positions],
            first + following_segments(segment, bool(groups.persistent[at]))[positions],
        )
        # The time of the moves at a change, in units of one promotion: promoted + weight * demoted,
        # where promoted = there - here + demoted.
        weight = self._limits.demotion_weight
        row = self._moving + stretch[positions]
        self._put(row, there, 1.0)
        self._put(row, here, -1.0)
        self._put(row, column, 1.0 + weight)
        # The promoted part (the increase plus the demoted part) is not negative.
        row = self._promotions + column - self._demotions
        self._put(row, here, 1.0)
        self._put(row, there, -1.0)
        self._put(row, column, -1.0)
        if self._limits.generous:
            # Without this row, demoting slow pages would make room. A plan's program does not need
            # this row, because there a demotion makes no room within its own stretch.
            row = self._demoted + column - self._demotions
            self._put(row, column, 1.0)
            self._put(row, here, -1.0)
        if at in self._dying_column:
            dying = np.array([self._dying_column[at]])
            self.upper[dying] = 0.0 if groups.stays[len(segment) - 1, at] else pages
            self._put(np.array([self._moving + int(stretch[-1])]), dying, weight)
            row = self._promotions + dying - self._demotions
            self._put(row, dying, 1.0)
            self._put(row, np.array([first + int(segment[-1])]), -1.0)

    def _put_pool(self) -> int:
        """Add the rows of the pool of dead pages; returns their number."""
        points, found = self._groups.points, self._transient
        assert found is not None
        at_birth, at_death = (
            np.array(
                [self._first[at] + self._segments[at][end] for at in found.rows.tolist()], np.int64
            )
            for end in (0, -1)
        )
        columns = PoolColumns(at_birth, at_death, self._left, self._made, self._changes_tier)
        entries, count = pool_rows(found, columns, len(points.event))
        self._put_all((self._pool + rows, column, value) for rows, column, value in entries)
        each = np.arange(len(points.event))
        self._put(self._before + each, self._left + each, 1.0)
        self._put(self._after + each, self._left + each, 1.0)
        return count

    def _points_with_deaths(self) -> npt.NDArray[np.bool_]:
        """(C,): which pressure points lie in a stretch in which a group dies."""
        groups, count = self._groups, self._count
        busy = np.zeros(count, np.bool_)
        transient = ~groups.persistent
        death = groups.birth + groups.length - 1 + groups.dies_in_birth_stretch
        busy[death[transient] % count] = True
        found: npt.NDArray[np.bool_] = np.repeat(busy, np.diff(groups.points.first))
        return found
