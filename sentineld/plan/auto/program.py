# SPDX-License-Identifier: Apache-2.0
"""The linear program: how much of each group is fast in each stretch, so that a step is shortest.

The bound's program (plan/fluid.py) with what a plan has to keep beside it: room
for births and for what dies within a stretch, and for promotions before they
land. A group changes only at some positions of its life, close to its uses one
by one, further away at wider steps: moves far from every use are as good a
little earlier or later. That makes the program small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.errors import SentinelError
from sentineld.plan.auto.groups import Groups
from sentineld.plan.items import Floats, Integers
from sentineld.plan.solver import quiet_solver

GRIDS = ((3, 0.4), (2, 1.0))
"""(positions next to a use at which a group may change one by one; further away the next one is by
this part of the distance further), the finer one first."""

COLUMNS_MAX = 14_000
"""Of the finer grid's program; larger ones take the coarser grid."""

MOVE_WORTH = 0.02
"""Charged for a move, of the time that it takes or that a use of a slow page costs, whichever is
less: no move for its own sake."""

UNIT_PAGES = 256.0
"""The solver's unit of memory: a MiB of small pages."""


@dataclass(frozen=True)
class Limits:
    """What a plan may use. times_ns: (S,), all-fast. page_ns: for a page to move.
    capacity_pages: of fast memory."""

    times_ns: Floats
    page_ns: float
    capacity_pages: int
    time_limit_s: float


@dataclass(frozen=True)
class Fluid:
    """fast_pages: (S, G), by position of the group's life, 0 beyond its end. step_ns: what the
    program says of the step."""

    fast_pages: Floats
    step_ns: float


def solve(groups: Groups, limits: Limits) -> Fluid | None:
    """Minimise the sum of the stretches' times D; None if the solver finds no answer in time.

    Variables: f, what is fast of each group in each segment between two changes; d, what is
    demoted at each change; D. Raises SentinelError without scipy.
    """
    try:
        from scipy.optimize import linprog
    except ImportError:
        raise SentinelError(
            "failed",
            "auto needs scipy, which is not installed",
            "apt install python3-scipy, or take the policy sentinel",
        ) from None
    program = _Program(groups, limits)
    matrix, least, goal = program.constraints()
    with quiet_solver():
        answer = linprog(
            goal,
            A_ub=matrix,
            b_ub=least,
            bounds=np.column_stack([np.zeros(len(goal)), program.upper]),
            method="highs-ds",
            options={"time_limit": limits.time_limit_s},
        )
    if answer.status != 0 or answer.x is None:
        return None
    return program.fluid(answer.x)


def changes(groups: Groups, group: int, grid: tuple[int, float]) -> Integers:
    """Positions of a group's life in which it may be moved. Not in the stretch of its birth, for
    its boundary passes before it is born, nor in its last."""
    length = int(groups.length[group])
    uses = np.flatnonzero(groups.cost_ns[:, group] > 0).tolist()
    found: set[int] = set()
    if groups.persistent[group]:
        for use, following in zip(uses, [*uses[1:], uses[0] + length], strict=True):
            found |= {position % length for position in _spaced(use, following, grid)}
    else:
        # After its last use it can only make room, and the sooner the better.
        for use, following in zip([0, *uses], [*uses, length - 1], strict=True):
            found |= _spaced(use, following, grid)
        found = {position for position in found if 0 < position < length - 1}
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
    """The rows and columns."""

    def __init__(self, groups: Groups, limits: Limits) -> None:
        self._groups, self._limits = groups, limits
        count = len(limits.times_ns)
        self._count = count
        self._unit_ns = max(float(limits.times_ns.sum()) / max(count, 1), 1.0)
        self._changes: list[Integers] = []
        for grid in GRIDS:
            self._changes = [changes(groups, at, grid) for at in range(len(groups.pages))]
            # A column for each segment and one for what is demoted at its end.
            if 2 * sum(len(positions) for positions in self._changes) <= COLUMNS_MAX:
                break
        self._segments: list[Integers] = []
        self._first: list[int] = []
        total = 0
        for at, positions in enumerate(self._changes):
            length = int(groups.length[at])
            segment = np.searchsorted(positions, np.arange(length), side="left")
            many = len(positions) + 1
            if groups.persistent[at] and len(positions):
                many = len(positions)
                segment %= many
            self._segments.append(segment)
            self._first.append(total)
            total += many
        self._held = total
        self._moved = sum(len(positions) for positions in self._changes)
        self.upper = np.full(total + self._moved + count, np.inf)
        self._rows: list[Integers] = []
        self._columns: list[Integers] = []
        self._values: list[Floats] = []

    def _put(self, row: Integers, column: Integers, value: float | Floats) -> None:
        self._rows.append(row)
        self._columns.append(column)
        self._values.append(np.broadcast_to(np.asarray(value, np.float64), row.shape))

    def constraints(self) -> tuple[object, Floats, Floats]:
        """(matrix, limits, goal) of matrix @ x <= limits.

        Rows: times and bandwidth of each stretch; room for each crowd before and after the
        moves of its stretch; and that what is promoted is not negative.
        """
        from scipy.sparse import coo_matrix

        groups, limits, count = self._groups, self._limits, self._count
        crowds = len(groups.crowds.event)
        move = limits.page_ns * UNIT_PAGES / self._unit_ns if self._moved else 1.0
        moving, before, after = count, 2 * count, 2 * count + crowds
        net = after + crowds
        slow = np.zeros(count)
        column = self._held
        for at in range(len(groups.pages)):
            length, lasts = int(groups.length[at]), bool(groups.persistent[at])
            pages = groups.pages[at] / UNIT_PAGES
            segment, first = self._segments[at], self._first[at]
            self.upper[first : first + int(segment.max()) + 1] = pages
            stretch = (int(groups.birth[at]) + np.arange(length)) % count
            cost = groups.cost_ns[:length, at] * UNIT_PAGES / self._unit_ns
            uses = np.flatnonzero(cost > 0)
            self._put(stretch[uses], first + segment[uses], -cost[uses])
            np.add.at(slow, stretch[uses], cost[uses] * pages)
            following = np.append(segment[1:], segment[0] if lasts else segment[-1])
            crowd, position = self._met(at, stretch)
            self._put(before + crowd, first + segment[position], 1.0)
            self._put(after + crowd, first + following[position], 1.0)
            positions = self._changes[at]
            if len(positions):
                demoted = column + np.arange(len(positions))
                column += len(positions)
                self.upper[demoted] = pages
                here, there = first + segment[positions], first + following[positions]
                row = moving + stretch[positions]
                self._put(row, there, 1.0)
                self._put(row, here, -1.0)
                self._put(row, demoted, 2.0)
                row = net + demoted - self._held
                self._put(row, here, 1.0)
                self._put(row, there, -1.0)
                self._put(row, demoted, -1.0)
        stretches = np.arange(count)
        duration = column + stretches
        self._put(stretches, duration, -1.0)
        self._put(moving + stretches, duration, -1.0 / move)
        bounds = np.zeros(net + self._moved)
        bounds[:count] = -(limits.times_ns / self._unit_ns + slow)
        bounds[before:net] = max(limits.capacity_pages, 0) / UNIT_PAGES
        goal = np.zeros(len(self.upper))
        costs = groups.cost_ns[groups.cost_ns > 0]
        use = float(costs.mean()) * UNIT_PAGES / self._unit_ns if len(costs) else 0.0
        goal[self._held : column] = 2 * MOVE_WORTH * min(move, use)
        goal[duration] = 1.0
        matrix = coo_matrix(
            (
                np.concatenate(self._values),
                (np.concatenate(self._rows), np.concatenate(self._columns)),
            ),
            shape=(len(bounds), len(goal)),
        ).tocsr()
        needed = np.ones(len(bounds), np.bool_)
        # Where nobody is born or dies, the crowd after the moves is the next one before them.
        needed[after:net] = self._crowd_changes()
        return matrix[needed], bounds[needed], goal

    def fluid(self, answer: Floats) -> Fluid:
        """The solution, by position."""
        groups = self._groups
        fast = np.zeros((self._count, len(groups.pages)))
        for at, segment in enumerate(self._segments):
            fast[: len(segment), at] = answer[self._first[at] + segment] * UNIT_PAGES
        spent = answer[self._held + self._moved :]
        return Fluid(fast, float(spent.sum()) * self._unit_ns)

    def _met(self, at: int, stretch: Integers) -> tuple[Integers, Integers]:
        """(crowd, position) for each crowd that the group is in."""
        groups = self._groups
        begin = groups.crowds.first[stretch].copy()
        end = groups.crowds.first[stretch + 1].copy()
        if not groups.persistent[at]:
            end[-1] = begin[-1] + groups.leaves[at]
            begin[0] += groups.enters[at]
        many = np.maximum(end - begin, 0)
        position = np.repeat(np.arange(len(stretch)), many)
        ordinal = np.arange(len(position)) - np.repeat(np.cumsum(many) - many, many)
        return begin[position] + ordinal, position

    def _crowd_changes(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        groups, count = self._groups, self._count
        busy = np.zeros(count, np.bool_)
        passing = ~groups.persistent
        busy[(groups.birth + groups.length - 1)[passing] % count] = True
        found: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.repeat(
            busy, np.diff(groups.crowds.first)
        )
        return found
