# SPDX-License-Identifier: Apache-2.0
"""The ranks of a distributed training, treated as one member when the shared budget is divided.

The ranks wait for each other in every step, so the slowest one determines the step time. A job
therefore counts as one member: its slowdown is the largest of its ranks' slowdowns, and its share
is divided so that this slowdown is as small as possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.model.records import PAGE_BYTES
from sentineld.plan.division import Curve, Member, Terms, equal_shares

RANKS_WITH_CURVE_MAX = 32
"""A job with more ranks than this has no curve: the time to compute the curve grows with the square
of the number of ranks, and the processes of any user can claim to be ranks of large jobs."""


def as_one(ranks: Sequence[Member]) -> Member:
    """The ranks of a job as one member. Its weight is the largest of the ranks' weights; its
    minimum is the sum of their minimums. Its maximum is the sum of their maximums, or unlimited
    if a rank has no maximum. It has a curve if there are at most RANKS_WITH_CURVE_MAX ranks, and
    if all of them have a curve that contains at least one plan."""
    if len(ranks) == 1:
        return ranks[0]
    most = [one.terms.most_bytes for one in ranks]
    terms = Terms(
        max(one.terms.weight for one in ranks),
        sum(one.terms.least_bytes for one in ranks),
        None if None in most else sum(one for one in most if one is not None),
    )
    curves = _permitted(ranks)
    known = len(curves) == len(ranks) <= RANKS_WITH_CURVE_MAX
    return Member(terms, _slowest(curves) if known else None)


def split(share_bytes: int, ranks: Sequence[Member], job: Member) -> list[int]:
    """Divide a job's share among its ranks. Returns the bytes for each rank; their sum is at most
    share_bytes. share_bytes must not be smaller than the sum of the ranks' minimums.

    job: the result of as_one().

    Each rank gets the budget that it needs for the job's slowdown at share_bytes, and an equal part
    of the rest. If a rank's curve or limits do not permit this, the result is equal_shares().
    """
    if len(ranks) == 1:
        return [share_bytes]
    slowdown = float("inf") if job.curve is None else float(job.curve.at([share_bytes])[0])
    if not np.isfinite(slowdown):
        return equal_shares(share_bytes, ranks)
    needed = [_Steps(curve).least_bytes(slowdown) for curve in _permitted(ranks)]
    rest = max(share_bytes - sum(needed), 0.0) / len(ranks)
    shares = [int(one + rest) // PAGE_BYTES * PAGE_BYTES for one in needed]
    for one, share in zip(ranks, shares, strict=True):
        highest = share if one.terms.most_bytes is None else one.terms.most_bytes
        if not one.terms.least_bytes <= share <= highest:
            return equal_shares(share_bytes, ranks)
    return shares


def _permitted(ranks: Sequence[Member]) -> list[Curve]:
    """The curves of the ranks that have one, each cut off at the rank's maximum budget."""
    curves = []
    for one in ranks:
        curve, most = one.curve, one.terms.most_bytes
        if curve is not None and most is not None and most < curve.budgets_bytes[-1]:
            points = zip(curve.budgets_bytes, curve.slowdowns, strict=True)
            below = [point for point in points if point[0] < most]
            budgets, slowdowns = zip(*below, (most, float(curve.at([most])[0])), strict=True)
            curve = Curve(budgets, slowdowns)
        if curve is not None:
            curves.append(curve)
    return curves


def _slowest(curves: Sequence[Curve]) -> Curve | None:
    """The curve of a job whose ranks have these curves; None if a rank has no plan for any budget.

    For each slowdown in a rank's curve, the job's budget is the sum of the budgets that the ranks
    need for this slowdown. Between two such slowdowns, all budgets are linear in the slowdown.
    """
    steps = [_Steps(curve) for curve in curves]
    if not all(len(one.slowdowns) for one in steps):
        return None
    # The job's least slowdown is the largest of its ranks' least slowdowns: the rank that has this
    # slowdown does not become faster with more memory.
    best = max(float(one.slowdowns[-1]) for one in steps)
    levels = sorted({float(level) for one in steps for level in one.slowdowns}, reverse=True)
    points: list[tuple[float, float]] = []
    for level in levels:
        if level >= best:
            points.append((sum(one.least_bytes(level) for one in steps), level))
            points.append((sum(one.most_bytes(level) for one in steps), level))
    last = sum(one.least_bytes(best) for one in steps)
    points = [point for point in points if point[0] <= last]
    budgets = list[int]()
    slowdowns = list[float]()
    for budget, level in points:
        if not budgets or int(budget) > budgets[-1]:
            budgets.append(int(budget))
            slowdowns.append(level)
        else:
            slowdowns[-1] = level
    return Curve(tuple(budgets), tuple(slowdowns))


class _Steps:
    """A curve, changed so that it never rises: the slowdown at a budget is the least slowdown of
    this budget and all smaller ones. Budgets below the smallest one that has a plan are left
    out."""

    def __init__(self, curve: Curve) -> None:
        slowdowns = np.minimum.accumulate(np.asarray(curve.slowdowns, np.float64))
        known = np.isfinite(slowdowns)
        self.budgets = np.asarray(curve.budgets_bytes, np.float64)[known]
        self.slowdowns = slowdowns[known]

    def least_bytes(self, slowdown: float) -> float:
        """The smallest budget with at most this slowdown. If the curve has no such budget,
        the result is the smallest budget with the curve's least slowdown."""
        reached = np.flatnonzero(self.slowdowns <= max(slowdown, float(self.slowdowns[-1])))
        return self._between(int(reached[0]) - 1, int(reached[0]), slowdown)

    def most_bytes(self, slowdown: float) -> float:
        """The largest budget with at least this slowdown.

        If all slowdowns are smaller, the result is the curve's smallest budget. If no slowdown is
        smaller, the result is the smallest budget with the curve's least slowdown.
        """
        above = np.flatnonzero(self.slowdowns >= slowdown)
        if not len(above):
            return float(self.budgets[0])
        if above[-1] == len(self.slowdowns) - 1:
            return self.least_bytes(slowdown)
        return self._between(int(above[-1]), int(above[-1]) + 1, slowdown)

    def _between(self, low: int, high: int, slowdown: float) -> float:
        """The budget at which the line between two points has this slowdown."""
        if low < 0:
            return float(self.budgets[0])
        before, after = self.slowdowns[low], self.slowdowns[high]
        if before == after:
            return float(self.budgets[high])
        part = min(max((before - slowdown) / (before - after), 0.0), 1.0)
        return float(self.budgets[low] + part * (self.budgets[high] - self.budgets[low]))
