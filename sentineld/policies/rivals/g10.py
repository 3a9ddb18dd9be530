# SPDX-License-Identifier: Apache-2.0
"""Policies `g10` and `g10+slow`: gaps go out in the order of the pressure that they take off.

After G10 (Zhang et al., MICRO 2023; its artifact's scheduler): while more is
resident than fits, the gap between two uses with the largest pressure area (bytes times
the time in which there is too much) is taken; longer and larger ones first among
equals. It must be long enough: (2 + DELTA) times the time of one transfer. Out
right after the last use, back as late as the bandwidth allows, and only if the way out ends
before the way back begins. Then, eagerly, gaps end earlier where there is room.

What applies to tiers of memory: one slow tier (the artifact's host memory; no SSD), one
bandwidth for both directions, stretches for kernels. `g10` never accesses slow memory,
as on a GPU: where it can't make everything fit, it is infeasible as published. `g10+slow` leaves
on the slow tier what does not fit, that which costs least for the room first: ours, not theirs.
The sweep is over DELTAS; the plan with the least predicted time is kept.
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

DELTAS = (0.5, 0.0, 2.0)
"""Slack of a gap beyond its two transfers, in transfers; 0.5 is the artifact's."""

TIE = 1e-6
"""Pressure areas that differ by less are equal: then the longer and larger gap goes first."""


@register("g10", False)
@register("g10+slow", True)
@dataclass
class G10:
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
        for delta in DELTAS:
            book = open_book(profile, tiers, budget_bytes, self.accesses_slow)
            relieve(book, tiers, delta)
            notes = [f"{len(book.swaps)} gaps used; slack of {delta:g} transfers"]
            if book.over.any():
                if not self.accesses_slow:
                    continue
                notes.append(f"{leave_slow(book, cost_ns)} tensors stay slow")
            book.hasten()
            found = swapping_plan(self.name, book, tiers, budget_bytes, tuple(notes))
            if best is None or found.predicted.step_ns < best.predicted.step_ns:
                best = found
        if best is None:
            raise infeasible("its gaps are too short, or the bandwidth is too low, to make room")
        return best


def relieve(book: Book, tiers: Tiers, delta: float) -> None:
    """Book gaps until everything fits or none is left that helps."""
    profile = book.profile
    times = profile.stretches["time_ns"].astype(np.float64)
    pages = tensor_pages(profile).astype(np.float64)
    page_ns = timing_of(tiers).move_ns_per_byte * profile.page_bytes
    found = gaps(book)
    size = pages[[gap.tensor for gap in found]]
    # How often each stretch lies between the two uses.
    between = np.zeros((len(found), profile.stretch_count))
    for at, gap in enumerate(found):
        between[at, book.between(gap)] = 1.0
    spans = between @ times
    left = spans > (2 + delta) * size * page_ns
    while book.over.any():
        areas = np.where(left, (between @ (times * book.over)) * size, 0.0)
        if not areas.any():
            return
        largest = np.flatnonzero(areas >= areas.max() * (1 - TIE))
        chosen = int(largest[np.argmax((spans * size)[largest])])
        left[chosen] = False
        book.try_swap(found[chosen])
