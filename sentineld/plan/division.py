# SPDX-License-Identifier: Apache-2.0
"""Divides a shared budget among sessions, by the value that memory has for each of them.

The value is known from a curve: the predicted slowdown of a session as a function of its budget.
The division minimises the weighted sum of the slowdowns. Two limits refer to equal shares, which
are proportional to the sessions' weights: the sum is never larger than with equal shares, and no
session's slowdown exceeds SLOWDOWN_MAX times its slowdown at its equal share.

Curves need not be convex: a plan often becomes much better at the budget at which one more group of
tensors fits. A greedy division, which gives each further byte to the session with the largest gain,
can miss such a budget, because the bytes just below it may gain nothing. Therefore, the division is
found by dynamic programming over units of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.model.arrays import Floats
from sentineld.model.records import PAGE_BYTES

SLOWDOWN_MAX = 1.25
"""Limit on a session's slowdown, as a multiple of its slowdown at an equal share."""
UNITS_MIN = 256
"""Minimum number of units into which a shared budget is divided."""
UNITS_PER_SESSION = 8
"""Minimum number of units per session; it matters if more than 32 sessions have curves."""
CURVES_DIVIDED_MAX = 64
"""If more sessions than this have a curve, each session gets its equal share. The time of a
division grows with the third power of the number of curves, and any user can start many
sessions."""
UNIT_VALUE_MIN = 1e-6
"""A unit of memory that reduces the weighted sum of the slowdowns by less than this stays free. A
session that starts later can then use it without a wait for other sessions."""
WEIGHT_RANGE = 0.01, 100.0
CURVE_SHARES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
"""Budgets for which plans are made to get a curve, as shares of the session's peak."""
ALL_FAST = 1.0005
"""If a session's slowdown is smaller than this, more fast memory is assumed to be of no use."""


@dataclass(frozen=True)
class Terms:
    """The conditions under which a session shares the budget."""

    weight: float = 1.0
    least_bytes: int = 0
    most_bytes: int | None = None  # None: unlimited

    def require(self, size_bytes: int) -> None:
        """Check the terms; size_bytes: the shared budget. Raises SentinelError."""
        lowest, highest = WEIGHT_RANGE
        if not lowest <= self.weight <= highest:  # false for nan
            raise SentinelError(
                "usage", f"the weight {self.weight:g} is invalid", f"use {lowest:g} to {highest:g}"
            )
        if self.most_bytes is not None and not 0 < self.most_bytes >= self.least_bytes:
            raise SentinelError(
                "usage",
                f"the minimum of {format_bytes(self.least_bytes)} exceeds the maximum of"
                f" {format_bytes(self.most_bytes)}"
                if self.most_bytes
                else "the maximum is 0 bytes",
                "set a larger --max",
            )
        if self.least_bytes > size_bytes:
            raise SentinelError(
                "budget-too-large",
                f"the minimum of {format_bytes(self.least_bytes)} exceeds the shared budget of"
                f" {format_bytes(size_bytes)}",
                "set a smaller --min",
            )


@dataclass(frozen=True)
class Curve:
    """The slowdown of a session as a function of its budget. A slowdown is the predicted time of a
    step, or of other work, divided by its time if all memory were fast."""

    budgets_bytes: tuple[int, ...]
    """Budgets in ascending order. No budget larger than the last one is useful."""
    slowdowns: tuple[float, ...]
    """Slowdown of the plan for each budget; infinite if there is no plan."""

    def at(self, budgets_bytes: Sequence[int] | Floats) -> Floats:
        """The slowdowns at these budgets, interpolated linearly; infinite below the smallest budget
        that has a plan."""
        # The plan for a smaller budget can also be used with a larger one.
        slowdowns = np.minimum.accumulate(np.asarray(self.slowdowns, np.float64))
        known = np.isfinite(slowdowns)
        wanted = np.asarray(budgets_bytes, np.float64)
        if not known.any():
            return np.full(wanted.shape, np.inf)
        budgets = np.asarray(self.budgets_bytes, np.float64)[known]
        found = np.interp(wanted, budgets, slowdowns[known])
        return np.where(wanted < budgets[0], np.inf, found)


def curve_of(
    slowdowns_at: Callable[[Sequence[int]], Sequence[float]], peak_bytes: int, size_bytes: int
) -> Curve:
    """A session's curve, up to the smaller of its peak and the shared budget (size_bytes).

    slowdowns_at: makes plans for the given budgets, in this order, and returns their slowdowns;
    infinite if there is no plan. It may stop after any budget. It is then called again with the
    remaining budgets, unless one of the slowdowns is below ALL_FAST.
    """
    largest = min(peak_bytes, size_bytes)
    wanted = [int(share * peak_bytes) for share in CURVE_SHARES]
    budgets = [*(one for one in wanted if one < largest), largest]
    slowdowns: list[float] = []
    while len(slowdowns) < len(budgets) and min(slowdowns, default=math.inf) >= ALL_FAST:
        slowdowns += slowdowns_at(budgets[len(slowdowns) :])
    return Curve(tuple(budgets[: len(slowdowns)]), tuple(slowdowns))


@dataclass(frozen=True)
class Member:
    """A session that shares the budget."""

    terms: Terms
    curve: Curve | None = None  # None: not known yet; the session gets an equal share
    size_bytes: int | None = None
    """The session takes spare memory (spare_parts()) until its share and the spare memory together
    reach this size. None: it takes no spare memory, because its plans use no more memory than the
    last budget of its curve."""

    @property
    def most_bytes(self) -> float:
        """The largest useful and permitted share."""
        limits = [self.terms.most_bytes or math.inf]
        if self.curve is not None:
            limits.append(self.curve.budgets_bytes[-1])
        elif self.size_bytes is not None:
            limits.append(self.size_bytes)
        return max(min(limits), self.terms.least_bytes)

    def useful(self, share_bytes: int) -> int:
        """The part of a share that is useful and permitted."""
        return int(min(share_bytes, self.most_bytes))


def equal_shares(size_bytes: int, members: Sequence[Member]) -> list[int]:
    """The shares in proportion to the weights, within each session's limits. They are rounded down
    to whole pages, but not below a session's minimum.

    The sum of the minimums must not exceed size_bytes.
    """
    low, high = 0.0, float(size_bytes) / min((one.terms.weight for one in members), default=1.0)

    def shares(level: float) -> list[float]:
        """The shares if a session of weight 1 without limits gets `level` bytes."""
        return [
            max(one.terms.least_bytes, min(one.most_bytes, level * one.terms.weight))
            for one in members
        ]

    if sum(shares(high)) <= size_bytes:
        low = high
    while high - low > 1:
        level = (low + high) / 2
        low, high = (level, high) if sum(shares(level)) <= size_bytes else (low, level)
    return [
        max(one.terms.least_bytes, int(share) // PAGE_BYTES * PAGE_BYTES)
        for one, share in zip(members, shares(low), strict=True)
    ]


def divide(size_bytes: int, members: Sequence[Member]) -> list[int]:
    """The division of a budget that minimises the weighted sum of the slowdowns; bytes for each
    session. The sum of the shares never exceeds size_bytes.

    A session without a curve gets an equal share. If no division is possible within the limits on
    slowdowns, or if more than CURVES_DIVIDED_MAX sessions have a curve, the result is
    equal_shares(). The sum of the minimums must not exceed size_bytes.
    """
    equal = equal_shares(size_bytes, members)
    known = [at for at, one in enumerate(members) if one.curve is not None]
    if not 0 < len(known) <= CURVES_DIVIDED_MAX:
        return equal
    rest_bytes = size_bytes - sum(equal[at] for at in range(len(members)) if at not in known)
    rest_bytes -= sum(members[at].terms.least_bytes for at in known)
    count = max(UNITS_MIN, UNITS_PER_SESSION * len(known))
    unit_bytes = max(rest_bytes // count // PAGE_BYTES, 1) * PAGE_BYTES
    units = max(rest_bytes, 0) // unit_bytes
    best = np.zeros(units + 1)
    chosen: list[npt.NDArray[np.int64]] = []
    for at in known:
        best, taken = _with_member(best, _costs(members[at], equal[at], units, unit_bytes))
        chosen.append(taken)
    if not np.isfinite(best[-1]):
        return equal
    shares, left = list(equal), units
    for at, taken in zip(reversed(known), reversed(chosen), strict=True):
        got = int(taken[left])
        shares[at] = members[at].terms.least_bytes + got * unit_bytes
        left -= got
    # Equal shares need not be whole numbers of units, so they can be better than `shares`.
    return shares if total(members, shares) <= total(members, equal) else equal


def spare_parts(
    size_bytes: int, members: Sequence[Member], shares_bytes: Sequence[int]
) -> list[int]:
    """The spare memory that each session gets in addition to its share (shares_bytes), in bytes.
    Only sessions whose Member.size_bytes is not None get spare memory, in proportion to their
    weights. Share and spare memory together exceed neither this size nor the maximum of the
    session's terms."""
    room = [
        min(one.size_bytes or 0, one.terms.most_bytes or math.inf) - share
        for one, share in zip(members, shares_bytes, strict=True)
    ]
    taking = [at for at, bytes_left in enumerate(room) if bytes_left >= PAGE_BYTES]
    takers = [Member(Terms(members[at].terms.weight, most_bytes=int(room[at]))) for at in taking]
    parts = [0] * len(members)
    for at, part in zip(taking, equal_shares(size_bytes - sum(shares_bytes), takers), strict=True):
        parts[at] = part
    return parts


def permitted(size_bytes: int, members: Sequence[Member], shares_bytes: Sequence[int]) -> bool:
    """Whether these shares satisfy the conditions of divide(): they are within all limits, and
    their weighted sum of slowdowns is not larger than that of equal shares."""
    equal = equal_shares(size_bytes, members)
    predicted = total(members, shares_bytes)
    if not math.isfinite(predicted):
        return list(shares_bytes) == equal
    if sum(shares_bytes) > size_bytes or predicted > total(members, equal):
        return False
    for one, share, equal_bytes in zip(members, shares_bytes, equal, strict=True):
        if one.curve is None:
            if share != equal_bytes:
                return False
            continue
        slowdown, before = one.curve.at([share, equal_bytes])
        if slowdown > SLOWDOWN_MAX * before or not one.terms.least_bytes <= share:
            return False
        if one.terms.most_bytes is not None and share > one.terms.most_bytes:
            return False
    return True


def total(members: Sequence[Member], shares_bytes: Sequence[int]) -> float:
    """The weighted sum of the slowdowns of the sessions that have a curve."""
    return sum(
        one.terms.weight * float(one.curve.at([share])[0])
        for one, share in zip(members, shares_bytes, strict=True)
        if one.curve is not None
    )


def _costs(member: Member, equal_bytes: int, units: int, unit_bytes: int) -> Floats:
    """(units + 1,): the weighted slowdown with 0, 1, ... units above the minimum, plus
    UNIT_VALUE_MIN for each of these units. Shares beyond the maximum, and shares that make the
    session too slow, have infinite costs."""
    assert member.curve is not None
    shares = member.terms.least_bytes + np.arange(units + 1, dtype=np.float64) * unit_bytes
    slowdowns = member.curve.at(shares)
    limit = SLOWDOWN_MAX * float(member.curve.at([equal_bytes])[0])
    useless = np.arange(units + 1) * UNIT_VALUE_MIN
    costs = member.terms.weight * slowdowns + useless
    # The shares are the minimum plus whole units, so perhaps none equals member.most_bytes. No
    # share above the first one that reaches most_bytes is allowed. This first one is allowed only
    # if it does not exceed the maximum of the session's terms.
    beyond = shares - unit_bytes >= member.most_bytes
    if member.terms.most_bytes is not None:
        beyond |= shares > max(member.terms.most_bytes, member.terms.least_bytes)
    return np.where((slowdowns > limit) | beyond, np.inf, costs)


def _with_member(best: Floats, costs: Floats) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Add a session to the division. best: (units + 1,), the least cost of the sessions so far if
    they may use at most 0, 1, ... units. costs: see _costs(). Returns two arrays of this shape: the
    least cost including the added session, and the number of units that this session then gets."""
    units = len(best) - 1
    sums, taken = np.full(units + 1, np.inf), np.zeros(units + 1, np.int64)
    for got in np.flatnonzero(np.isfinite(costs)):
        found = best[: units + 1 - got] + costs[got]
        better = found < sums[got:]
        sums[got:][better] = found[better]
        taken[got:][better] = got
    return sums, taken
