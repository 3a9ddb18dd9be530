# SPDX-License-Identifier: Apache-2.0
"""AutoTM's integer program: for each use of a tensor whether it is fast, for each gap between two
uses whether the tensor goes out, and how what goes out and comes back is spread over stretches.

A span is a run of stretches that all use a tensor; it is fast or slow as a whole. What
is fast at the span after a gap and was not before it, or went out, comes back in the gap. The sum
of slow accesses' costs is minimised under the room and the bandwidth of each stretch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.stdout import silent_stdout
from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Kind, Profile
from sentineld.plan.items import lasting, lifetimes, tensor_pages, transient

BOUND_OPS = 15
"""So near to a use the artifact lets its asynchronous transfers be. A longer way takes as many
stretches as it needs twice over."""

MOVE_WEIGHT = 1e-5
"""What a transfer's time counts beside the time of the step: of equals, the one that moves less."""

WHOLE = 1e-6
"""So near to 0 or 1 the solver's whole numbers are."""

UNIT_PAGES = 256.0
"""The solver's unit of memory: a MiB of small pages."""


class Span(NamedTuple):
    """Positions [since, until] of a tensor's life, counted from its birth stretch, each of which
    uses it. A lasting tensor's last one may end past the circle."""

    tensor: int
    since: int
    until: int


class Gap(NamedTuple):
    """Between two spans (their numbers). Positions in which parts may go out, and come back;
    round the circle, they go on past its length."""

    tensor: int
    before: int
    after: int
    out: tuple[int, ...]
    back: tuple[int, ...]

    @property
    def round_trip(self) -> bool:
        """Whether there is time to go out and to come back."""
        return self.out[0] != self.back[-1]


@dataclass(frozen=True)
class Problem:
    """What is to be decided. cost_ns: (T,) by position, of each tensor's slow accesses in a
    stretch. births, lengths: of each tensor."""

    profile: Profile
    spans: tuple[Span, ...]
    gaps: tuple[Gap, ...]
    cost_ns: dict[int, Floats]
    births: Integers
    lengths: Integers


@dataclass(frozen=True)
class Answer:
    """fast: for each span. out, back: for each gap pages by position of gap.out and gap.back; none
    where nothing is moved. least_ns: no answer costs less than this. note: how it was found."""

    fast: tuple[bool, ...]
    out: tuple[Integers, ...]
    back: tuple[Integers, ...]
    least_ns: float
    note: str


def problem_of(profile: Profile, extra_ns: Floats, page_ns: float) -> Problem:
    """Spans and gaps of all tensors whose slow accesses cost anything; the others are slow.
    extra_ns: of each access row. page_ns: a page's transfer."""
    count = profile.stretch_count
    births, lengths = lifetimes(profile)
    pages, kinds = tensor_pages(profile), profile.tensors["kind"]
    times = profile.stretches["time_ns"].astype(np.float64)
    rows = profile.accesses
    spans: list[Span] = []
    gaps: list[Gap] = []
    costs: dict[int, Floats] = {}
    for tensor in np.flatnonzero(transient(profile) | lasting(profile)).tolist():
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
            # A birth is a use, and so is a death: a tensor may be slow from its last one on.
            uses |= {0, length - 1}
        spans += [Span(tensor, since, until) for since, until in _runs(sorted(uses))]
        if lasts and len(spans) - first > 1 and {0, count - 1} <= uses:
            # One span round the step's end.
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
                out, back = _windows(inside, stretch_ns, 2 * page_ns * float(pages[tensor]))
                gaps.append(Gap(tensor, before, after, out, back))
    return Problem(profile, tuple(spans), tuple(gaps), costs, births, lengths)


def solve(
    problem: Problem, room: int, page_ns: float, gap: float, limits_s: tuple[float, float]
) -> Answer:
    """room: fast pages in every stretch. gap: the answer may cost so much more than the best.
    limits_s: for the relaxation, for the search.

    The relaxation comes first. What it decides about tensors that it leaves whole is kept, but for
    when they move, and the others are searched. Without an answer in time those are slow,
    which is always allowed. Raises SentinelError without scipy.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise SentinelError(
            "failed", "autotm needs scipy, which is not installed", "apt install python3-scipy"
        ) from None
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
        return model.answer(nothing, 0.0, "no relaxation in time: everything stays slow")
    least = model.cost_ns(float(relaxed.fun))
    parted = model.parted_tensors(relaxed.x)
    lower, upper = model.kept(relaxed.x, parted)
    found = run(True, lower, upper, limits_s[1])
    if found.x is None:
        slow = np.where(np.isin(model.tensor, list(parted)), 0.0, relaxed.x)
        return model.answer(slow, least, f"no answer in time: {len(parted)} tensors are slow")
    words = "to the end" if found.status == 0 else "for as long as there was time"
    return model.answer(
        found.x, least, f"{len(parted)} tensors that the relaxation parts are searched {words}"
    )


class _Model:
    """The program's rows and columns: x by span, a by gap (goes out), out and back by gap and
    position, F by stretch. Time in mean stretches, memory in UNIT_PAGES."""

    def __init__(self, problem: Problem, room: int, page_ns: float) -> None:
        from scipy.sparse import coo_matrix

        self._problem = problem
        profile, spans, gaps = problem.profile, problem.spans, problem.gaps
        count = profile.stretch_count
        times = profile.stretches["time_ns"].astype(np.float64)
        self._unit_ns = max(float(times.mean()), 1.0)
        self._pages = tensor_pages(profile)
        self._first_out = len(spans) + len(gaps)
        sizes = [(len(gap.out), len(gap.back)) for gap in gaps]
        self._ends = np.cumsum([0, *[out + back for out, back in sizes]]) + self._first_out
        frames = int(self._ends[-1])
        many = frames + count
        self.tensor = np.full(many, -1)
        self.tensor[: len(spans)] = [span.tensor for span in spans]
        self.tensor[len(spans) : self._first_out] = [gap.tensor for gap in gaps]
        for number, gap in enumerate(gaps):
            self.tensor[self._ends[number] : self._ends[number + 1]] = gap.tensor
        self.whole = np.zeros(many)
        self.whole[: self._first_out] = 1
        self.lower = np.zeros(many)
        self.upper = np.ones(many)
        size = self._pages / UNIT_PAGES
        moved = self.tensor[self._first_out : frames]
        self.upper[self._first_out : frames] = size[moved]
        self.upper[frames:] = room / UNIT_PAGES
        self.goal = np.zeros(many)
        move = page_ns * UNIT_PAGES / self._unit_ns
        self.goal[self._first_out : frames] = MOVE_WEIGHT * move
        rows: list[tuple[int, int, float]] = []
        low: list[float] = []
        high: list[float] = []

        def row(entries: list[tuple[int, float]], least: float, most: float) -> None:
            rows.extend((len(low), column, value) for column, value in entries)
            low.append(least)
            high.append(most)

        lanes: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        changes: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        at_begin: list[tuple[int, float]] = []
        slow = np.zeros(count)
        by_tensor: dict[int, list[int]] = {}
        for number, span in enumerate(spans):
            by_tensor.setdefault(span.tensor, []).append(number)
            cost = problem.cost_ns[span.tensor] / self._unit_ns
            for at in range(span.since, span.until + 1):
                stretch = (int(problem.births[span.tensor]) + at) % count
                each = float(cost[at % count])
                self.goal[number] -= each
                slow[stretch] += each
                lanes[stretch].append((number, each))
            if self._covers(span.tensor, span.since, span.until):
                at_begin.append((number, float(size[span.tensor])))
        for number, gap in enumerate(gaps):
            whole, begin = float(size[gap.tensor]), int(self._ends[number])
            out = list(range(begin, begin + len(gap.out)))
            back = list(range(begin + len(gap.out), int(self._ends[number + 1])))
            goes = len(spans) + number
            row([*((each, 1.0) for each in out), (goes, -whole)], 0.0, 0.0)
            row(
                [
                    *((each, 1.0) for each in back),
                    (gap.after, -whole),
                    (gap.before, whole),
                    (goes, -whole),
                ],
                0.0,
                0.0,
            )
            row([(goes, 1.0), (gap.before, -1.0)], -np.inf, 0.0)
            if not gap.round_trip:
                row([(goes, 1.0), (gap.after, 1.0)], -np.inf, 1.0)
            birth = int(problem.births[gap.tensor])
            for column, at in [*zip(out, gap.out, strict=True), *zip(back, gap.back, strict=True)]:
                lanes[(birth + at) % count].append((column, move))
            for column, at in zip(out, gap.out, strict=True):
                changes[(birth + at + 1) % count].append((column, -1.0))
            for column, at in zip(back, gap.back, strict=True):
                changes[(birth + at) % count].append((column, 1.0))
            begins = self._covers(gap.tensor, gap.out[0], gap.back[-1])
            if begins:
                here = begins - 1 + gap.out[0]
                at_begin.append((gap.before, whole))
                at_begin += [(c, -1.0) for c, at in zip(out, gap.out, strict=True) if at < here]
                at_begin += [(c, 1.0) for c, at in zip(back, gap.back, strict=True) if at <= here]
        for tensor, numbers in by_tensor.items():
            if profile.tensors["kind"][tensor] == Kind.PERSISTENT:
                continue
            birth, length = int(problem.births[tensor]), int(problem.lengths[tensor])
            changes[birth % count].append((numbers[0], float(size[tensor])))
            changes[(birth + length) % count].append((numbers[-1], -float(size[tensor])))
        # What is fast in a stretch: what was, what is new, less what is gone.
        row([(frames, 1.0), *((c, -v) for c, v in at_begin)], 0.0, 0.0)
        for stretch in range(1, count):
            entries = [(frames + stretch, 1.0), (frames + stretch - 1, -1.0)]
            row([*entries, *((c, -v) for c, v in changes[stretch])], 0.0, 0.0)
        for stretch in range(count):
            most = float(times[stretch]) / self._unit_ns + float(slow[stretch])
            row(lanes[stretch], -np.inf, most)
        self._slow = float(slow.sum())
        lines, columns, values = zip(*rows, strict=True)
        self.matrix = coo_matrix((values, (lines, columns)), shape=(len(low), many)).tocsr()
        self.low, self.high = np.array(low), np.array(high)

    def _covers(self, tensor: int, since: int, until: int) -> int:
        """1 + how far after `since` the step begins, if it does within these positions; else 0."""
        ahead = (-int(self._problem.births[tensor]) - since) % self._problem.profile.stretch_count
        return ahead + 1 if ahead <= until - since else 0

    def cost_ns(self, value: float) -> float:
        """What slow accesses cost at a value of the goal."""
        return (value + self._slow) * self._unit_ns

    def parted_tensors(self, x: Floats) -> set[int]:
        """Tensors that a solution has partly fast, or partly moved."""
        decided = x[: self._first_out]
        parts = np.abs(decided - np.rint(decided)) > WHOLE
        return set(self.tensor[: self._first_out][parts].tolist())

    def kept(self, x: Floats, parted: set[int]) -> tuple[Floats, Floats]:
        """Bounds that leave the decisions for all other tensors as they are. When they move is
        still open."""
        lower, upper = self.lower.copy(), self.upper.copy()
        decided = np.zeros(len(x), np.bool_)
        decided[: self._first_out] = ~np.isin(self.tensor[: self._first_out], list(parted))
        lower[decided] = upper[decided] = np.rint(x[decided])
        return lower, upper

    def answer(self, x: Floats, least_ns: float, note: str) -> Answer:
        """In pages."""
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
    """Parts of a tensor in pages: all of them, or none."""
    total = float(parts.sum())
    if total * UNIT_PAGES < pages / 2:
        return np.zeros(len(parts), np.int64)
    reached = np.rint(np.cumsum(parts) / total * pages).astype(np.int64)
    found: Integers = np.diff(np.concatenate([[0], reached]))
    return found


def _runs(positions: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of adjacent ones."""
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
    """Where parts go out and come back: the first and the last of the positions, both in the same
    one if there is no other."""
    half = -(-len(inside) // 2)
    first = int(np.searchsorted(np.cumsum(times), needed_ns)) + 1
    last = int(np.searchsorted(np.cumsum(times[::-1]), needed_ns)) + 1
    out = min(half, max(BOUND_OPS, first))
    back = min(max(len(inside) - half, 1), max(BOUND_OPS, last))
    return tuple(inside[:out]), tuple(inside[len(inside) - back :])
