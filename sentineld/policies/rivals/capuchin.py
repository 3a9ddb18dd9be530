# SPDX-License-Identifier: Apache-2.0
"""Policies `capuchin` and `capuchin+slow`: gaps with the most free time go out first.

After Capuchin (Peng et al., ASPLOS 2020): from one step's list of accesses,
gaps between two accesses of a tensor that span the peak of memory are candidates. The
free time of a gap is what is left of it after the transfer out and the transfer back;
the gap with the most is taken first, while more is resident than fits. Out right
after the access, back just in time, and earlier where the lane is busy.

What applies to tiers of memory: one bandwidth for both directions, stretches for
accesses. Left out: recomputation, which no memory policy can do, so that gaps without free time
are not used; and the feedback of running steps (a transfer still in flight at its access
is triggered 5 % of its time earlier): its outcome, transfers that are given so much more time,
is swept (EARLIER). `capuchin` never accesses slow memory, as on a GPU: where it can't make
everything fit, it is infeasible as published. `capuchin+slow` leaves on the slow tier what does
not fit, that which costs least for the room first: ours, not theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.model.timing import timing_of
from sentineld.plan.items import tensor_pages
from sentineld.policies.registry import register
from sentineld.policies.rivals.swaps import (
    Book,
    gaps,
    infeasible,
    leave_slow,
    open_book,
    swapping_plan,
)

EARLIER = (0.05, 0.0, 0.2)
"""Time that a transfer is given beyond what it takes, as a part of that."""


@register("capuchin", False)
@register("capuchin+slow", True)
@dataclass
class Capuchin:
    """The policy. accesses_slow: whether what does not fit may stay on the slow tier."""

    name: str
    accesses_slow: bool
    charges_budget: bool = True

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """Plan a step; see Policy. Raises SentinelError where it is infeasible."""
        cost_ns = np.bincount(
            profile.accesses["tensor"],
            timing_of(tiers).extra_ns(profile),
            minlength=len(profile.tensors),
        ).astype(np.float64)
        best: Plan | None = None
        for earlier in EARLIER:
            book = open_book(profile, tiers, budget_bytes, self.accesses_slow)
            book.lanes /= 1 + earlier
            page_ns = timing_of(tiers).move_ns_per_byte * profile.page_bytes * (1 + earlier)
            relieve(book, page_ns)
            notes = [f"{len(book.swaps)} gaps used; {earlier:.0%} more time for each transfer"]
            if book.over.any():
                if not self.accesses_slow:
                    continue
                notes.append(f"{leave_slow(book, cost_ns)} tensors stay slow")
            found = swapping_plan(self.name, book, tiers, budget_bytes, tuple(notes))
            if best is None or found.predicted.step_ns < best.predicted.step_ns:
                best = found
        if best is None:
            raise infeasible("its gaps have too little free time to make room")
        return best


def relieve(book: Book, page_ns: float) -> None:
    """Book gaps by free time until everything fits. page_ns: a page's transfer."""
    times = book.profile.stretches["time_ns"].astype(np.float64)
    pages = tensor_pages(book.profile)
    free_ns = [
        (float(times[book.between(gap)].sum()) - 2 * float(pages[gap.tensor]) * page_ns, gap)
        for gap in gaps(book)
    ]
    # The sort is stable: of equals, the first tensor.
    for spare_ns, gap in sorted(free_ns, key=lambda entry: -entry[0]):
        over = book.over
        if not over.any() or spare_ns < 0:
            return
        if over[book.between(gap)].any():
            book.try_swap(gap)
