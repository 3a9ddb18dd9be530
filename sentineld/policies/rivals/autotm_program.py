# SPDX-License-Identifier: Apache-2.0
"""AutoTM's integer program.

A span is a run of stretches that all use a tensor; a gap is the time between two spans. For each
span, the program decides whether the tensor is fast. For each gap, it decides whether the tensor is
swapped out. For each stretch of a gap, it decides how large a part of the tensor is swapped out or
in. The program minimises the total cost of slow accesses within the room and the bandwidth of each
stretch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sentineld.base.stdout import silent_stdout
from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import lifetimes, persistent, tensor_pages, transient
from sentineld.policies.lp.problem import UNIT_PAGES
from sentineld.policies.require import scipy_missing

BOUND_OPS = 15
"""In AutoTM's published code, the maximum distance of an asynchronous transfer from a use, in
operators. Here, a transfer may use this number of stretches. If these stretches take less time than
transferring the tensor out and back in, the transfer may use as many stretches as are needed to
reach this time."""

MOVE_WEIGHT = 1e-5
"""Weight of a transfer's time in the objective function (_Model.goal). It breaks ties in favour of
fewer moves."""

WHOLE = 1e-6
"""A value of the solver counts as an integer if it differs from the nearest integer by at most
this."""


class Span(NamedTuple):
    """Positions [since, until] of a tensor's lifetime; the tensor is used in each of them.

    Position p is the stretch (birth + p) % S. Here, `birth` is the tensor's birth stretch, 0 for a
    persistent tensor, and S is the number of stretches. Positions of a persistent tensor can be S
    or more: they are in the next step.
    """

    tensor: int
    since: int  # first position, in stretches from the birth
    until: int  # last position


class Gap(NamedTuple):
    """The time between two spans of a tensor. Positions are defined as in Span."""

    tensor: int
    before: int  # index of the span before the gap
    after: int  # index of the span after the gap
    out: tuple[int, ...]  # positions in which parts may be swapped out
    back: tuple[int, ...]  # positions in which parts may be swapped back in

    @property
    def round_trip(self) -> bool:
        """Whether the gap has at least two positions: one to swap out, and one to swap back in."""
        return self.out[0] != self.back[-1]


@dataclass(frozen=True)
class Problem:
    """The spans and gaps of all tensors that the program plans."""

    profile: Profile
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]

    cost_ns: dict[int, Floats]
    """For each tensor with spans, (S,): cost of its slow accesses by position of its lifetime."""

    births: Integers
    """(T,): birth stretch of each tensor."""

    lengths: Integers
    """(T,): number of stretches in each tensor's lifetime."""


@dataclass(frozen=True)
class Answer:
    """A solution in whole pages."""

    fast: tuple[bool, ...]
    """Whether the tensor is fast, for each span."""

    out: tuple[Integers, ...]
    """For each gap, the number of pages swapped out at each position of gap.out; all 0 if nothing
    is swapped."""

    back: tuple[Integers, ...]
    """For each gap, the number of pages swapped back in at each position of gap.back."""

    least_ns: float
    """Lower bound on the cost of any solution: the cost of the relaxation, or 0 if the relaxation
    was not solved in time."""

    note: str
    """A text that says how the solution was found."""


def problem_of(profile: Profile, extra_ns: Floats, both_ns: float) -> Problem:
    """Find the spans and gaps of all tensors whose slow accesses cost time.

    The other tensors stay slow.

    extra_ns: (A,), cost of each access row if its accesses are slow.
    both_ns: time to transfer a page out and back in.
    """
    count = profile.stretch_count
    births, lengths = lifetimes(profile)
    pages, kinds = tensor_pages(profile), profile.tensors["kind"]
    times = profile.stretches["time_ns"].astype(np.float64)
    rows = profile.accesses
    spans: list[Span] = []
    gaps: list[Gap] = []
    costs: dict[int, Floats] = {}
    for tensor in np.flatnonzero(transient(profile) | persistent(profile)).tolist():
        mine = np.flatnonzero((rows["tensor"] == tensor) & (extra_ns > 0))
        if not len(mine):
            continue
        birth, length = int(births[tensor]), int(lengths[tensor])
        cost = np.zeros(count)
        position = (rows["stretch"][mine].astype(np.int64) - birth) % count
        np.add.at(cost, position, extra_ns[mine])
        costs[tensor] = cost
        uses = set(np.flatnonzero(cost).tolist())
        lasts = bool(kinds[tensor] == Kind.PERSISTENT)
        first = len(spans)
        if not lasts:
            # Birth and death count as uses, so that a tensor can be slow after its last real use.
            uses |= {0, length - 1}
        spans += [Span(tensor, since, until) for since, until in _runs(sorted(uses))]
        if lasts and len(spans) - first > 1 and {0, count - 1} <= uses:
            # Join the first and the last span: the joined span wraps around the step's end.
            last = spans.pop()
            spans[first] = Span(tensor, last.since, spans[first].until + count)
            spans[first:] = [*spans[first + 1 :], spans[first]]
        numbers = list(range(first, len(spans)))
        ends = [(one, one + 1, spans[one + 1].since) for one in numbers[:-1]]
        if lasts:
            ends.append((numbers[-1], first, spans[first].since + count))
        for before, after, until in ends:
            inside = range(spans[before].until + 1, until)
            if inside:
                stretch_ns = times[(birth + np.array(inside)) % count]
                out, back = _windows(inside, stretch_ns, both_ns * float(pages[tensor]))
                gaps.append(Gap(tensor, before, after, out, back))
    return Problem(profile, tuple(spans), tuple(gaps), costs, births, lengths)


def solve(
    problem: Problem,
    room: int,
    page_ns: tuple[float, float],
    gap: float,
    limits_s: tuple[float, float],
) -> Answer:
    """Solve the relaxation, then search for integer decisions on the tensors that it divides.

    The relaxation divides a tensor if only a part of the tensor is fast in some span, or only a
    part is moved in some gap. For all other tensors, the relaxation's decisions are kept, except
    for the times of moves. If the search finds no solution in time, the divided tensors are slow,
    which is always feasible. If the relaxation is not solved in time, all tensors are slow.

    room: limit on the fast pages in every stretch.
    page_ns: times to swap a page in and to swap a page out.
    gap: relative distance from the optimum at which the search stops.
    limits_s: time limits for the relaxation and for the search.
    Raises SentinelError if scipy is not installed.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise scipy_missing("autotm") from None
    model = _Model(problem, room, page_ns)

    def run(whole: bool, lower: Floats, upper: Floats, seconds: float) -> Any:
        options = {"mip_rel_gap": gap, "time_limit": seconds}
        with silent_stdout():
            return milp(
                model.goal,
                integrality=model.whole if whole else np.zeros(len(model.goal)),
                bounds=Bounds(lower, upper),
                constraints=LinearConstraint(model.matrix, model.low, model.high),
                options=options,
            )

    relaxed = run(False, model.lower, model.upper, limits_s[0])
    if relaxed.x is None or relaxed.status != 0:
        nothing = np.zeros(len(model.goal))
        return model.answer(
            nothing, 0.0, "the relaxation was not solved in time: everything stays slow"
        )
    least = model.cost_ns(float(relaxed.fun))
    divided = model.divided_tensors(relaxed.x)
    lower, upper = model.kept(relaxed.x, divided)
    found = run(True, lower, upper, limits_s[1])
    if found.x is None:
        slow = np.where(np.isin(model.tensor, list(divided)), 0.0, relaxed.x)
        return model.answer(
            slow, least, f"the search found nothing in time: {len(divided)} tensors are slow"
        )
    end = "the search was completed" if found.status == 0 else "the time limit ended the search"
    return model.answer(found.x, least, f"the relaxation divides {len(divided)} tensors; {end}")


Terms = list[tuple[int, float]]
"""Columns and their coefficients in one row."""


class _Rows:
    """Rows of the program: least <= sum of the terms <= most."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, float]] = []
        self.least: list[float] = []
        self.most: list[float] = []

    def add(self, terms: Terms, least: float, most: float) -> None:
        """Add one row."""
        self._entries.extend((len(self.least), column, value) for column, value in terms)
        self.least.append(least)
        self.most.append(most)

    def matrix(self, columns: int) -> Any:
        """All rows as a sparse matrix."""
        from scipy.sparse import coo_matrix

        rows, places, values = zip(*self._entries, strict=True)
        return coo_matrix((values, (rows, places)), shape=(len(self.least), columns)).tocsr()


class _Model:
    """The program.

    The unit of time is the mean time of a stretch; the unit of memory is UNIT_PAGES.

    Columns, in this order:

    - for each span, whether the tensor is fast;
    - for each gap, whether the tensor is swapped out;
    - for each gap, the part swapped out at each position, then the part swapped back in at each
      position;
    - for each stretch, the fast memory in use.
    """

    def __init__(self, problem: Problem, room: int, page_ns: tuple[float, float]) -> None:
        self._problem = problem
        self._times_ns = problem.profile.stretches["time_ns"].astype(np.float64)
        self._unit_ns = max(float(self._times_ns.mean()), 1.0)
        self._move_in, self._move_out = (one * UNIT_PAGES / self._unit_ns for one in page_ns)
        self._pages = tensor_pages(problem.profile)
        self._size = self._pages / UNIT_PAGES
        self._lay_out_columns(room / UNIT_PAGES)
        rows = _Rows()
        self._add_transfers(rows)
        self._add_room(rows)
        self._slow = self._add_times(rows)
        self.matrix = rows.matrix(len(self.goal))
        self.low, self.high = np.array(rows.least), np.array(rows.most)

    def _lay_out_columns(self, room: float) -> None:
        """Set each column's tensor, integrality and bounds; add the cost of moves to the goal."""
        spans, gaps = self._problem.spans, self._problem.gaps
        self._first_out = len(spans) + len(gaps)
        sizes = [len(gap.out) + len(gap.back) for gap in gaps]
        self._ends = np.cumsum([0, *sizes]) + self._first_out
        self._fast = int(self._ends[-1])
        many = self._fast + self._problem.profile.stretch_count
        self.tensor = np.full(many, -1)
        self.tensor[: len(spans)] = [span.tensor for span in spans]
        self.tensor[len(spans) : self._first_out] = [gap.tensor for gap in gaps]
        for number, gap in enumerate(gaps):
            self.tensor[self._ends[number] : self._ends[number + 1]] = gap.tensor
        self.whole = np.zeros(many)
        self.whole[: self._first_out] = 1
        self.lower = np.zeros(many)
        self.upper = np.ones(many)
        self.upper[self._first_out : self._fast] = self._size[
            self.tensor[self._first_out : self._fast]
        ]
        self.upper[self._fast :] = room
        self.goal = np.zeros(many)
        for number in range(len(gaps)):
            for column, move in self._transfers(number):
                self.goal[column] = MOVE_WEIGHT * move

    def _out(self, number: int) -> list[tuple[int, int]]:
        """(column, position) of each part of a tensor that is swapped out during a gap."""
        begin, gap = int(self._ends[number]), self._problem.gaps[number]
        return list(zip(range(begin, begin + len(gap.out)), gap.out, strict=True))

    def _back(self, number: int) -> list[tuple[int, int]]:
        """(column, position) of each part of a tensor that is swapped back in during a gap."""
        end, gap = int(self._ends[number + 1]), self._problem.gaps[number]
        return list(zip(range(end - len(gap.back), end), gap.back, strict=True))

    def _transfers(self, number: int) -> list[tuple[int, float]]:
        """(column, time to move a unit of memory) of each part that is moved during a gap."""
        out, back = self._out(number), self._back(number)
        return [
            *((column, self._move_out) for column, _ in out),
            *((column, self._move_in) for column, _ in back),
        ]

    def _add_transfers(self, rows: _Rows) -> None:
        """Add the rows of each gap, which relate its transfers to the tiers of the spans."""
        for number, gap in enumerate(self._problem.gaps):
            size, goes = float(self._size[gap.tensor]), len(self._problem.spans) + number
            # The parts that are swapped out add up to the whole tensor or to nothing.
            rows.add([*((c, 1.0) for c, _ in self._out(number)), (goes, -size)], 0.0, 0.0)
            # A tensor is swapped in if it is fast after the gap and either was slow before the gap
            # or was swapped out in the gap.
            decided = [(gap.after, -size), (gap.before, size), (goes, -size)]
            rows.add([*((c, 1.0) for c, _ in self._back(number)), *decided], 0.0, 0.0)
            # Only a fast tensor can be swapped out.
            rows.add([(goes, 1.0), (gap.before, -1.0)], -np.inf, 0.0)
            if not gap.round_trip:
                rows.add([(goes, 1.0), (gap.after, 1.0)], -np.inf, 1.0)

    def _add_room(self, rows: _Rows) -> None:
        """For each stretch, add a row that defines the fast memory in use in the stretch. In the
        first stretch, this is the memory of the tensors that are fast then. In each later stretch,
        it is the fast memory in use in the previous stretch, plus births and promotions, minus
        deaths and demotions."""
        problem, count = self._problem, self._problem.profile.stretch_count
        at_begin: Terms = []
        changes: list[Terms] = [[] for _ in range(count)]
        of_tensor: dict[int, list[int]] = {}
        for number, span in enumerate(problem.spans):
            of_tensor.setdefault(span.tensor, []).append(number)
            if self._step_begin(span.tensor, span.since, span.until) is not None:
                at_begin.append((number, float(self._size[span.tensor])))
        for number, gap in enumerate(problem.gaps):
            birth, out, back = (
                int(problem.births[gap.tensor]),
                self._out(number),
                self._back(number),
            )
            for column, at in out:
                changes[(birth + at + 1) % count].append((column, -1.0))
            for column, at in back:
                changes[(birth + at) % count].append((column, 1.0))
            here = self._step_begin(gap.tensor, gap.out[0], gap.back[-1])
            if here is not None:
                at_begin.append((gap.before, float(self._size[gap.tensor])))
                at_begin += [(column, -1.0) for column, at in out if at < here]
                at_begin += [(column, 1.0) for column, at in back if at <= here]
        for tensor, numbers in of_tensor.items():
            if problem.profile.tensors["kind"][tensor] == Kind.PERSISTENT:
                continue
            birth, length = int(problem.births[tensor]), int(problem.lengths[tensor])
            size = float(self._size[tensor])
            changes[birth % count].append((numbers[0], size))
            changes[(birth + length) % count].append((numbers[-1], -size))
        rows.add([(self._fast, 1.0), *((c, -v) for c, v in at_begin)], 0.0, 0.0)
        for stretch in range(1, count):
            terms = [(self._fast + stretch, 1.0), (self._fast + stretch - 1, -1.0)]
            rows.add([*terms, *((c, -v) for c, v in changes[stretch])], 0.0, 0.0)

    def _add_times(self, rows: _Rows) -> float:
        """Add the row of each stretch: its transfers take no longer than the stretch. The stretch's
        time includes its slow accesses. Also add the slow accesses to the goal. Return the total
        cost if all accesses are slow."""
        problem, count = self._problem, self._problem.profile.stretch_count
        lanes: list[Terms] = [[] for _ in range(count)]
        slow = np.zeros(count)
        for number, span in enumerate(problem.spans):
            cost = problem.cost_ns[span.tensor] / self._unit_ns
            for at in range(span.since, span.until + 1):
                stretch = (int(problem.births[span.tensor]) + at) % count
                each = float(cost[at % count])
                self.goal[number] -= each
                slow[stretch] += each
                lanes[stretch].append((number, each))
        for number, gap in enumerate(problem.gaps):
            birth = int(problem.births[gap.tensor])
            positions = [at for _, at in (*self._out(number), *self._back(number))]
            for (column, move), at in zip(self._transfers(number), positions, strict=True):
                lanes[(birth + at) % count].append((column, move))
        for stretch in range(count):
            most = float(self._times_ns[stretch]) / self._unit_ns + float(slow[stretch])
            rows.add(lanes[stretch], -np.inf, most)
        return float(slow.sum())

    def _step_begin(self, tensor: int, since: int, until: int) -> int | None:
        """The first of the positions [since, until] of a tensor's lifetime that lies in stretch 0;
        None if there is no such position."""
        ahead = (-int(self._problem.births[tensor]) - since) % self._problem.profile.stretch_count
        return since + ahead if ahead <= until - since else None

    def cost_ns(self, value: float) -> float:
        """Cost of the slow accesses, plus MOVE_WEIGHT times the time of the transfers. value: the
        value of the objective function."""
        return (value + self._slow) * self._unit_ns

    def divided_tensors(self, x: Floats) -> set[int]:
        """Tensors that are partly fast or partly moved in a solution."""
        decided = x[: self._first_out]
        parts = np.abs(decided - np.rint(decided)) > WHOLE
        return set(self.tensor[: self._first_out][parts].tolist())

    def kept(self, x: Floats, divided: set[int]) -> tuple[Floats, Floats]:
        """Column bounds that fix the relaxation's decisions on all tensors that it does not divide,
        and leave the times of moves free."""
        lower, upper = self.lower.copy(), self.upper.copy()
        decided = np.zeros(len(x), np.bool_)
        decided[: self._first_out] = ~np.isin(self.tensor[: self._first_out], list(divided))
        lower[decided] = upper[decided] = np.rint(x[decided])
        return lower, upper

    def answer(self, x: Floats, least_ns: float, note: str) -> Answer:
        """Convert a solution to whole pages."""
        spans, gaps = self._problem.spans, self._problem.gaps
        out: list[Integers] = []
        back: list[Integers] = []
        for number, gap in enumerate(gaps):
            pages, begin = int(self._pages[gap.tensor]), int(self._ends[number])
            middle, end = begin + len(gap.out), int(self._ends[number + 1])
            out.append(_whole_pages(x[begin:middle], pages))
            back.append(_whole_pages(x[middle:end], pages))
        fast = tuple(bool(value > 0.5) for value in x[: len(spans)])
        return Answer(fast, tuple(out), tuple(back), least_ns, note)


def _whole_pages(parts: Floats, pages: int) -> Integers:
    """Round the parts of a tensor to whole pages, so that they add up to all pages of the tensor or
    to none."""
    total = float(parts.sum())
    if total * UNIT_PAGES < pages / 2:
        return np.zeros(len(parts), np.int64)
    reached = np.rint(np.cumsum(parts) / total * pages).astype(np.int64)
    found: Integers = np.diff(np.concatenate([[0], reached]))
    return found


def _runs(positions: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of adjacent positions."""
    found: list[tuple[int, int]] = []
    for at in positions:
        if found and found[-1][1] == at - 1:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


def _windows(
    inside: range, times: Floats, needed_ns: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(positions for swapping parts out, positions for swapping parts in) of a gap.

    The first positions of the gap are for swapping out, the last ones for swapping in. If the gap
    has only one position, this position serves both purposes.

    times: times of the positions' stretches.
    needed_ns: minimum total time of the positions for each direction, if the gap is long enough.
    """
    half = -(-len(inside) // 2)
    first = int(np.searchsorted(np.cumsum(times), needed_ns)) + 1
    last = int(np.searchsorted(np.cumsum(times[::-1]), needed_ns)) + 1
    out = min(half, max(BOUND_OPS, first))
    back = min(max(len(inside) - half, 1), max(BOUND_OPS, last))
    return tuple(inside[:out]), tuple(inside[len(inside) - back :])
