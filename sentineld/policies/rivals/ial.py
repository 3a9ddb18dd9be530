# SPDX-License-Identifier: Apache-2.0
"""Policy `ial`: periodically exchange active slow pages with inactive fast pages.

Based on the improved active list (Yan et al., "Nimble Page Management", ASPLOS 2019): the reference
bits of all pages are scanned once per interval. A page whose bit was set in the last two scans is
active; a page whose bit was clear in the last scan is inactive. Active slow pages are promoted into
free fast memory, first in, first out. If free fast memory is too small, active slow pages are
exchanged with inactive fast pages. The pages that have been inactive the longest are exchanged
first. Published interval: 5 s. Left out: the cost of scanning, and the limit on the number of pages
that are exchanged at a time. Pages move at the bandwidth of the timing model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import ReactivePolicy, Setting, exchange

INTERVAL_S = 5.0


@register()
class Ial(ReactivePolicy):
    """Policy `ial`; see the module's docstring."""

    name = "ial"
    published_s = INTERVAL_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [("", Lists)]


class Lists:
    """The active and inactive lists of both tiers. All pages of a cell are referenced together."""

    def __init__(self, interval_ns: float) -> None:
        self.interval_ns = interval_ns
        self._seen = np.zeros(0, np.int64)  # consecutive scans in which each cell was referenced
        self._unseen = np.zeros(0, np.int64)  # scans since each cell was last referenced

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Promote and exchange pages; see Reactor."""
        if not len(self._seen):
            self._seen = np.zeros(len(observation.fast), np.int64)
            self._unseen = np.zeros(len(observation.fast), np.int64)
        referenced = observation.accesses > 0
        self._seen = np.where(referenced, self._seen + 1, 0)
        self._unseen = np.where(referenced, 0, self._unseen + 1)
        cells = np.arange(len(referenced))
        active = cells[(self._seen >= 2) & (observation.slow > 0)]
        inactive = cells[(self._unseen >= 1) & (observation.fast > 0)]
        # The cell that has been active (or inactive) the longest is at the head of its list.
        active = active[np.argsort(-self._seen[active], kind="stable")]
        inactive = inactive[np.argsort(-self._unseen[inactive], kind="stable")]
        # An exchange moves one page in each direction.
        exchanged = int(observation.slow[active].sum()) - observation.free_pages
        return exchange(observation, active, inactive, exchanged)
