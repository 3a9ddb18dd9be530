# SPDX-License-Identifier: Apache-2.0
"""Latency of the accesses to each tier under load, for policies that balance these latencies.

For tiers whose accesses overlap (Overlap.TIERS), this model assumes that all accesses of a stretch
are outstanding when the stretch begins, and that each tier serves its accesses one after another at
its bandwidth. On average, an access then waits for half of the time in which its tier is busy. So
both tiers have the same latency in a stretch if and only if they are busy for the same time. The
stretch then takes the least time that the timing model allows. If accesses to the two tiers do not
overlap, no access waits for another one, and the latencies do not depend on the load.
"""

from __future__ import annotations

import numpy as np

from sentineld.model.arrays import Floats, Integers
from sentineld.model.profile import Profile
from sentineld.model.tiers import Overlap
from sentineld.model.timing import Timing
from sentineld.plan.items import access_pages
from sentineld.simulate.cells import Cells, page_costs


class LoadedLatencies:
    """Mean latencies of the page accesses to the fast and to the slow tier, in ns."""

    def __init__(self, profile: Profile, cells: Cells, timing: Timing) -> None:
        fast_ns = timing.fast_ns(profile)
        services_ns = (fast_ns, fast_ns + timing.extra_ns(profile))
        counts = access_pages(profile)
        total = max(float(counts.sum()), 1.0)
        self._unloaded_ns = [float(service_ns.sum()) / total for service_ns in services_ns]
        self.depend_on_load = timing.overlap == Overlap.TIERS
        """If false, passed() need not be called."""
        if self.depend_on_load:
            rows = np.ones(len(counts), np.bool_)
            # Three arrays of (stretches, cells). Each value describes the accesses of a stretch to
            # one page of a cell: the time to serve them if the page is fast, the time if it is
            # slow, and their number.
            self._service_ns = [page_costs(profile, cells, ns, rows) for ns in services_ns]
            self._accesses = page_costs(profile, cells, counts, rows)
        self._waited_ns, self._served = np.zeros((2, 2))

    def passed(self, stretch: int, fast: Integers, slow: Integers) -> None:
        """Add the accesses of a stretch. fast, slow: (C,), pages of each cell on each tier while
        the stretch accesses them."""
        if not self.depend_on_load:
            return
        for tier, pages in enumerate((fast, slow)):
            busy_ns = float(self._service_ns[tier][stretch] @ pages)
            served = float(self._accesses[stretch] @ pages)
            self._waited_ns[tier] += served * busy_ns / 2
            self._served[tier] += served

    def take(self) -> Floats:
        """(2,): the mean latencies on the fast and on the slow tier since the last call, but never
        less than the latencies without load."""
        mean_ns = self._waited_ns / np.maximum(self._served, 1.0)
        self._waited_ns, self._served = np.zeros((2, 2))
        found: Floats = np.maximum(mean_ns, self._unloaded_ns)
        return found
