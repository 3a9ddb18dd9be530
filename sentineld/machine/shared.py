# SPDX-License-Identifier: Apache-2.0
"""The shared budget: fast memory that is divided among the sessions attached without --fast."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.machine.budgets import Budgets
from sentineld.plan.division import (
    Curve,
    Member,
    Terms,
    divide,
    equal_shares,
    permitted,
    spare_parts,
    total,
)
from sentineld.plan.ranks import as_one, split

GAIN_MIN = 0.005
"""If the present division is still permitted (see division.py), a new one replaces it only if the
weighted sum of the slowdowns then drops by more than this share. The threshold exists because each
replacement makes sessions plan again."""
MIB = 1 << 20


@dataclass(frozen=True)
class Share:
    """A session's part of the shared budget, and the figures that explain its size."""

    size_bytes: int  # the shared budget
    sessions: int  # number of sessions that share the budget; a job counts as one
    ranks: int  # number of sessions that belong to this session's job; 1: no job
    weight: float
    least_bytes: int
    most_bytes: int | None  # None: unlimited
    share_bytes: int  # the session's part of the shared budget
    spare_bytes: int  # part of share_bytes that lowers no predicted slowdown; see spare_parts()
    equal_bytes: int  # the session's equal share (see the glossary)
    slowdown: float | None  # predicted at share_bytes; None here and below: not known
    equal_slowdown: float | None  # predicted at equal_bytes
    relative_slowdown: float | None  # slowdown / equal_slowdown
    gain_per_mib: float | None  # reduction of the slowdown by one more MiB


@dataclass(eq=False)
class _Sharer:
    """A session that was attached without --fast."""

    member: Member
    job: Hashable = None  # the same for all ranks of a job; None: no job
    rank: int = 0
    counts: bool = False  # whether it gets a part of the budget; see SharedBudget.count()
    share_bytes: int = 0
    spare_bytes: int = 0  # see Share
    equal_bytes: int = 0
    job_ranks: int = 0  # number of ranks among which the job's share was divided
    job_bytes: int = 0  # the job's share; the sum of its ranks' shares can be smaller by some pages


class SharedBudget:
    """Divides the shared budget among sessions, and keeps the sum of their budgets within it.
    `holder` identifies a session: it is the session's ShimLink or, if the session's processes run
    without the shim, the HeatSession. Thread-safe.

    A session's share is the budget that it should have; `budgets` has the memory that each session
    holds now. Memory that a session holds can be reserved by others only after the session has
    given it up, so that the sum never exceeds the shared budget.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.budgets = Budgets(size_bytes, "the shared budget")
        self.curve_turn = threading.Lock()
        """Held while plans are made for a curve. Only one session at a time makes its curve.
        Otherwise curves could occupy all planning processes, and plans that sessions are to enter
        would wait for a long time."""
        self._lock = threading.Lock()
        self._sharers: dict[Hashable, _Sharer] = {}

    def join(self, holder: Hashable, terms: Terms, job: Hashable = None, rank: int = 0) -> None:
        """Add a session, or change its terms. Raises SentinelError if the terms are impossible.

        job: a value that all ranks of a distributed training have in common. The division counts
            them as one session (plan/ranks.py). None: the process belongs to no job.
        rank: the process's rank in the job. No job has two processes of the same rank. So if two
            sessions have the same `job` and the same rank, they belong to different jobs.
        """
        terms.require(self.size_bytes)
        with self._lock:
            others_bytes = sum(
                one.member.terms.least_bytes
                for other, one in self._sharers.items()
                if other != holder
            )
            if terms.least_bytes + others_bytes > self.size_bytes:
                raise SentinelError(
                    "budget-too-large",
                    f"the minimum of {format_bytes(terms.least_bytes)} and the other sessions'"
                    f" minimums of {format_bytes(others_bytes)} exceed the shared budget of"
                    f" {format_bytes(self.size_bytes)}",
                    "set a smaller --min",
                )
            known = self._sharers.setdefault(holder, _Sharer(Member(terms), job, rank))
            known.member = replace(known.member, terms=terms)
            self._divide()

    def leave(self, holder: Hashable) -> None:
        """Remove a session, if it shares the budget, and release its budget."""
        with self._lock:
            if self._sharers.pop(holder, None) is None:
                return
            self._divide()
        self.budgets.settle(holder, 0)

    def shares(self, holder: Hashable) -> bool:
        """Whether a session shares the budget."""
        with self._lock:
            return holder in self._sharers

    def count(self, holder: Hashable) -> None:
        """From now on, give this session a part of the budget. Call this when the session's process
        runs steps. If the session got a part earlier, it could not use this part yet, but the other
        sessions would have less memory."""
        with self._lock:
            sharer = self._sharers.get(holder)
            if sharer is not None and not sharer.counts:
                sharer.counts = True
                self._divide()

    def learn(self, holder: Hashable, curve: Curve | None, size_bytes: int | None = None) -> None:
        """Store a session's curve, and divide the budget again. curve: None if no curve can be
        made. size_bytes: see Member."""
        with self._lock:
            sharer = self._sharers.get(holder)
            if sharer is not None:
                sharer.member = replace(sharer.member, curve=curve, size_bytes=size_bytes)
                self._divide()

    def share_bytes(self, holder: Hashable) -> int:
        """The session's share. Before count(): the equal share that it would get."""
        with self._lock:
            sharer = self._sharers[holder]
            if sharer.counts:
                return sharer.share_bytes
            jobs = _by_job([*self._counted(), sharer])
            members = _members(jobs)
            shares = equal_shares(self.size_bytes, members)
            return next(
                _split(ranks, share, member)[-1]
                for ranks, share, member in zip(jobs, shares, members, strict=True)
                if sharer in ranks
            )

    def explain(self, holder: Hashable) -> Share | None:
        """A session's share with the figures that explain it; None: the session does not share the
        budget."""
        with self._lock:
            sharer = self._sharers.get(holder)
            if sharer is None:
                return None
            terms, curve = sharer.member.terms, sharer.member.curve
            slowdown = equal = gain = None
            if curve is not None and sharer.counts:
                at = [sharer.share_bytes, sharer.equal_bytes, sharer.share_bytes + MIB]
                found = [float(one) if one < float("inf") else None for one in curve.at(at)]
                slowdown, equal, more = found
                gain = slowdown - more if slowdown is not None and more is not None else None
            jobs = _by_job(self._counted())
            return Share(
                self.size_bytes,
                len(jobs),
                next((len(ranks) for ranks in jobs if sharer in ranks), 1),
                terms.weight,
                terms.least_bytes,
                terms.most_bytes,
                sharer.share_bytes,
                sharer.spare_bytes,
                sharer.equal_bytes,
                slowdown,
                equal,
                slowdown / equal if slowdown is not None and equal else None,
                gain,
            )

    def _counted(self) -> list[_Sharer]:
        return [one for one in self._sharers.values() if one.counts]

    def _divide(self) -> None:
        """Divide the budget among the counted sessions again. Keep the present division if it is
        still permitted and a new one would gain at most GAIN_MIN."""
        jobs = _by_job(self._counted())
        members = _members(jobs)
        equal = equal_shares(self.size_bytes, members)
        shares = divide(self.size_bytes, members)
        present = [
            # Memory beyond the useful part of a share (Member.useful()) is spare memory, which is
            # divided anew below.
            _present_bytes(ranks) if one.size_bytes is None else one.useful(_present_bytes(ranks))
            for ranks, one in zip(jobs, members, strict=True)
        ]
        if permitted(self.size_bytes, members, present) and not (
            total(members, shares) < (1 - GAIN_MIN) * total(members, present)
        ):
            shares = present
        # as_one() gives a job of several ranks no size_bytes, so its ranks get no spare memory.
        spare = spare_parts(self.size_bytes, members, shares)
        for ranks, member, job_bytes, job_equal, more in zip(
            jobs, members, shares, equal, spare, strict=True
        ):
            parts = _split(ranks, job_bytes, member), _split(ranks, job_equal, member)
            for one, share, equal_part in zip(ranks, *parts, strict=True):
                one.share_bytes, one.spare_bytes, one.equal_bytes = share + more, more, equal_part
                one.job_ranks, one.job_bytes = len(ranks), job_bytes


def _by_job(sharers: Sequence[_Sharer]) -> list[list[_Sharer]]:
    """The sessions, grouped by job; a session without a job is a group of its own."""
    jobs: dict[Hashable, list[_Sharer]] = {}
    found: dict[Hashable, int] = {}  # by job and rank: number of sessions
    for one in sharers:
        if one.job is None:
            jobs[id(one)] = [one]
            continue
        number = found[one.job, one.rank] = found.get((one.job, one.rank), 0) + 1
        jobs.setdefault((one.job, number), []).append(one)
    return list(jobs.values())


def _present_bytes(ranks: Sequence[_Sharer]) -> int:
    """The present share of a job. If ranks have come or gone since the share was divided among
    them, the result is the sum of the shares of the given ranks."""
    first = ranks[0]
    if all((one.job_ranks, one.job_bytes) == (len(ranks), first.job_bytes) for one in ranks):
        return first.job_bytes
    return sum(one.share_bytes for one in ranks)


def _members(jobs: Sequence[Sequence[_Sharer]]) -> list[Member]:
    return [as_one([one.member for one in ranks]) for ranks in jobs]


def _split(ranks: Sequence[_Sharer], share_bytes: int, job: Member) -> list[int]:
    return split(share_bytes, [one.member for one in ranks], job)
