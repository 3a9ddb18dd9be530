# SPDX-License-Identifier: Apache-2.0
"""The shared budget: fast memory that is divided among the sessions attached without --fast."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, replace

from sentineld.base.errors import SentinelError
from sentineld.base.units import format_bytes
from sentineld.machine.budgets import Budgets
from sentineld.plan.division import Curve, Member, Terms, divide, equal_shares, permitted, total

GAIN_MIN = 0.005
"""The division is replaced by another one if the weighted sum of the slowdowns decreases by more
than this share of it. Each replacement makes sessions plan again."""
MIB = 1 << 20


@dataclass(frozen=True)
class Share:
    """A session's part of the shared budget, and its reasons."""

    size_bytes: int  # the shared budget
    sessions: int  # number of sessions among which it is divided
    weight: float
    least_bytes: int
    most_bytes: int | None  # None: unlimited
    share_bytes: int  # the part of the session; its budget follows as soon as possible
    equal_bytes: int  # an equal share, in proportion to the weight
    slowdown: float | None  # predicted at share_bytes; None here and below: not known
    equal_slowdown: float | None  # predicted at equal_bytes
    relative_slowdown: float | None  # slowdown / equal_slowdown
    gain_per_mib: float | None  # reduction of the slowdown by one more MiB


@dataclass
class _Sharer:
    """A session that was attached without --fast."""

    member: Member
    counts: bool = False  # whether the budget is divided with it; see SharedBudget.count()
    share_bytes: int = 0
    equal_bytes: int = 0


class SharedBudget:
    """Divides the budget, and keeps the sum of the budgets that sessions hold within it. A holder
    is a session's ShimLink. Thread-safe.

    A session's share is the budget that it should have; `budgets` has the budgets that the sessions
    hold. A session first gives up memory, and then other sessions can reserve it, so that the sum
    never exceeds the shared budget.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.budgets = Budgets(size_bytes, "the shared budget")
        self.curve_turn = threading.Lock()
        """Held while plans are made for a curve. Only one session at a time makes its curve, so
        that the plans that sessions are to enter do not wait long for a planning process."""
        self._lock = threading.Lock()
        self._sharers: dict[Hashable, _Sharer] = {}

    def join(self, holder: Hashable, terms: Terms) -> None:
        """Add a session, or change its terms. Raises SentinelError if the terms are impossible."""
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
            known = self._sharers.setdefault(holder, _Sharer(Member(terms)))
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
        """Divide the budget with this session from now on: its process runs steps. Before that, its
        share would be lost to the other sessions."""
        with self._lock:
            sharer = self._sharers.get(holder)
            if sharer is not None and not sharer.counts:
                sharer.counts = True
                self._divide()

    def learn(self, holder: Hashable, curve: Curve) -> None:
        """Take a session's curve, and divide the budget again."""
        with self._lock:
            sharer = self._sharers.get(holder)
            if sharer is not None:
                sharer.member = replace(sharer.member, curve=curve)
                self._divide()

    def share_bytes(self, holder: Hashable) -> int:
        """The session's share. Before count(): the equal share that it would get."""
        with self._lock:
            sharer = self._sharers[holder]
            if sharer.counts:
                return sharer.share_bytes
            members = [one.member for one in self._counted()] + [sharer.member]
            return equal_shares(self.size_bytes, members)[-1]

    def explain(self, holder: Hashable) -> Share | None:
        """A session's share with its reasons; None: the session does not share the budget."""
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
            return Share(
                self.size_bytes,
                len(self._counted()),
                terms.weight,
                terms.least_bytes,
                terms.most_bytes,
                sharer.share_bytes,
                sharer.equal_bytes,
                slowdown,
                equal,
                slowdown / equal if slowdown is not None and equal is not None else None,
                gain,
            )

    def _counted(self) -> list[_Sharer]:
        return [one for one in self._sharers.values() if one.counts]

    def _divide(self) -> None:
        """Divide the budget among the counted sessions, unless the present division is possible and
        hardly worse."""
        sharers = self._counted()
        members = [one.member for one in sharers]
        equal = equal_shares(self.size_bytes, members)
        shares, present = divide(self.size_bytes, members), [one.share_bytes for one in sharers]
        keep = permitted(self.size_bytes, members, present) and not (
            total(members, shares) < (1 - GAIN_MIN) * total(members, present)
        )
        for sharer, share, equal_bytes in zip(sharers, shares, equal, strict=True):
            sharer.equal_bytes = equal_bytes
            if not keep:
                sharer.share_bytes = share
