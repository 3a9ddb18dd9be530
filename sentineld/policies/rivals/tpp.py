# SPDX-License-Identifier: Apache-2.0
"""Policy `tpp`: hint faults promote, watermarks demote.

Transparent page placement (Maruf et al., ASPLOS 2023; Linux 5.18): pages of
the slow node alone are made to fault once a scan. A page that faults and is on
the active list, that is, was accessed before within the last scans, is promoted; else
it is only marked (two touches). Demotion does not wait for a full node: when less
than DEMOTE_BELOW of the fast tier is free, the pages that were not accessed for
longest go, until there is that much, so that births find room. Published scan period: 1 s at
the fastest. Left out, in its favour: what faults cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.policy import Reactor, Sight, Wish
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import first_touch_layout, intervals, total, wishes

SCAN_S = 1.0
DEMOTE_BELOW = 0.02
"""Of the fast tier: the demotion watermark, above that of allocation."""

HEADROOM = 0.005
"""Of the fast tier: promotions leave so much free."""


@register()
class Tpp:
    """The policy."""

    name = "tpp"
    charges_budget = False

    def plan(self, profile: Profile, tiers: Tiers, budget_bytes: int) -> Plan:
        """A layout; see Policy."""
        return first_touch_layout(self.name, profile, tiers, budget_bytes)

    def reactors(self, profile: Profile) -> Sequence[tuple[str, Reactor]]:
        """Several scan periods; see Reactive."""
        return [(words, Scanner(ns)) for words, ns in intervals(profile, SCAN_S)]


class Scanner:
    """Ages of all cells, in scans."""

    def __init__(self, interval_ns: float) -> None:
        self.interval_ns = interval_ns
        self._age = np.zeros(0, np.int64)  # scans since each cell's last access
        self._marked = np.zeros(0, np.bool_)  # touched at the scan before

    def tick(self, sight: Sight) -> list[Wish]:
        """Promote what faulted twice, demote what is oldest; see Reactor."""
        if not len(self._age):
            self._age = np.zeros(len(sight.fast), np.int64)
            self._marked = np.zeros(len(sight.fast), np.bool_)
        touched = sight.accesses > 0
        self._age = np.where(touched, 0, self._age + 1)
        cells = np.arange(len(touched))
        faulting = cells[touched & self._marked & (sight.slow > 0)]
        self._marked = touched
        low = int(sight.capacity_pages * DEMOTE_BELOW)
        down: list[Wish] = []
        if sight.free_pages < low:
            cold = cells[(self._age >= 1) & (sight.fast > 0)]
            cold = cold[np.argsort(-self._age[cold], kind="stable")]
            # Reclaim goes on until promotions and births have room.
            wanted = low - sight.free_pages + int(sight.slow[faulting].sum())
            down = wishes(cold.tolist(), sight.fast, 1, min(wanted, sight.move_pages // 2))
        room = sight.free_pages + total(down) - int(sight.capacity_pages * HEADROOM)
        up = max(min(room, sight.move_pages - total(down)), 0)
        return [*down, *wishes(faulting.tolist(), sight.slow, 0, up)]
