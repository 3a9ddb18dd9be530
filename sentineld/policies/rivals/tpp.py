# SPDX-License-Identifier: Apache-2.0
"""Policy `tpp`: promote pages at hint faults; demote pages while free fast memory is low.

Based on transparent page placement (Maruf et al., ASPLOS 2023; Linux 5.18): each scan makes the
pages of the slow node fault at their next access. Pages of the fast node do not fault. A page that
faults is promoted if it is on the active list of the slow node. Any other page that faults is only
marked, which puts it on this list. A page is therefore promoted at its second fault, however long
after the first one. A mark ends when the page is promoted or freed. If the page is demoted later,
it has no mark, because demotion takes pages from the inactive list. While the page stays slow, the
mark does not end: only a lack of memory on the slow node would make the kernel age the node's
active list, and here the slow tier has room for all pages. Demotion starts before the fast node is
full, so that there is room for births: if the free share of the fast tier is below a watermark, the
least recently accessed pages are demoted. The number of demoted pages is such that the
free share is at the watermark after the promotions. Published scan period: at least 1 s.

A page faults at most once in a scan period. Each fault takes HINT_FAULT_NS, whether the page is
marked or promoted. As under all policies, pages are copied in the background, and not by the
faulting thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import (
    HINT_FAULT_NS,
    LastUse,
    ReactivePolicy,
    Setting,
    exchange,
    pages_below,
)

SCAN_S = 1.0
DEMOTE_BELOW = (0.02, 0.005, 0.1)
"""Values of the demotion watermark, as a share of the fast tier. The published one comes first. In
the original, the fast node also has a lower watermark, below which no page is allocated on it."""

HEADROOM = 0.005
"""Share of the fast tier that promotions leave free."""


@register()
class Tpp(ReactivePolicy):
    """Policy `tpp`; see the module's docstring."""

    name = "tpp"
    published_s = SCAN_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [
            (f"demotes below {share:.1%} free", partial(Scanner, demote_below=share))
            for share in DEMOTE_BELOW
        ]


class Scanner:
    """The state of the scans: the last use of each cell, the number of its pages that fault at
    their next access, and whether the cell is marked.

    At each tick, a scan period ends and the next one begins. The first period begins with a scan,
    too. All pages of a cell that fault do so together.
    """

    def __init__(self, interval_ns: float, demote_below: float = DEMOTE_BELOW[0]) -> None:
        """demote_below: one of DEMOTE_BELOW."""
        self.interval_ns = interval_ns
        self._demote_below = demote_below
        self._last_use = LastUse()
        self._marked = np.zeros(0, np.bool_)  # cells with pages on the slow node's active list
        self._hinted = np.zeros(0, np.int64)  # slow pages of each cell at the last scan
        self._faults = 0

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Promote the slow pages that faulted both in this period and in an earlier one, and demote
        the least recently accessed fast pages; see Reactor."""
        touched = observation.accesses > 0
        if not len(self._marked):
            self._marked = np.zeros(len(touched), np.bool_)
            self._hinted = observation.slow
        # Pages that were demoted in this period do not fault before the next scan.
        faults = np.where(touched, np.minimum(self._hinted, observation.slow), 0)
        self._faults = int(faults.sum())
        self._hinted = observation.slow
        self._last_use.tick(touched)
        rising = np.flatnonzero(self._marked & (faults > 0))
        self._marked = (self._marked | (faults > 0)) & (observation.slow > 0)
        # Demotions make room for promotions as well as for births.
        demoted = pages_below(observation, rising, self._demote_below)
        cold = self._last_use.oldest(observation.fast > 0)
        headroom = int(observation.capacity_pages * HEADROOM)
        return exchange(observation, rising, cold, demoted, headroom)

    def delay_ns(self) -> float:
        """Time of the hint faults of the scan period that has just ended; see DelayingReactor."""
        return self._faults * HINT_FAULT_NS
