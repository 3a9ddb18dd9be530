# SPDX-License-Identifier: Apache-2.0
"""Policy `memtis`: promote the hottest pages that fit, by a histogram of access counts.

Based on MEMTIS (Lee et al., SOSP 2023), without its huge pages: pages are sorted into 16 bins by
the binary logarithm of their access counts. From the hottest bin down, bins are hot as long as all
hot pages together fill at most 97 % of the fast tier. If the hot pages fill less than three
quarters of the fast tier, the next bin is warm: its pages are not demoted. The coldest bin is
always cold. Hot slow pages are promoted, the hottest first; cold fast pages are demoted to make
room, the coldest first. Each time a fixed number of intervals (COOL_TICKS) has passed, all counts
are halved (cooled). Published interval of the migration thread: 500 ms. Left out: sampling (every
access is counted, which favours the policy) and the splitting of huge pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sentineld.model.arrays import Integers
from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import ReactivePolicy, Setting, exchange
from sentineld.policies.temperature.buckets import histogram, hottest_that_fit

MIGRATE_S = 0.5
COOL_TICKS = (4, 1, 16)
"""Numbers of intervals after which the counts are halved again. The policy tries each of these
numbers."""
BINS = 16
SPARE = 0.03
"""Share of the fast tier that hot pages leave free."""

WARM_BELOW = (0.75, 0.0)
"""If hot pages fill less than this share of the fast tier, the next colder bin is warm. Each of
these shares is tried; the published one comes first. With 0, no bin is warm."""


@register()
class Memtis(ReactivePolicy):
    """Policy `memtis`; see the module's docstring."""

    name = "memtis"
    published_s = MIGRATE_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [
            (
                f"cooled every {ticks} intervals, warm below {warm:.0%}",
                partial(Histogram, cool_ticks=ticks, warm_below=warm),
            )
            for ticks in COOL_TICKS
            for warm in WARM_BELOW
        ]


class Histogram:
    """The policy's state: the access counts, averaged over the pages of each cell."""

    def __init__(
        self,
        interval_ns: float,
        cool_ticks: int = COOL_TICKS[0],
        warm_below: float = WARM_BELOW[0],
    ) -> None:
        """cool_ticks, warm_below: see COOL_TICKS and WARM_BELOW."""
        self.interval_ns = interval_ns
        self._cool_ticks, self._warm_below = cool_ticks, warm_below
        self._count = np.zeros(0)
        self._ticks = 0

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Choose the thresholds between hot, warm and cold bins, then demote cold fast pages and
        promote hot slow pages; see Reactor."""
        if not len(self._count):
            self._count = np.zeros(len(observation.fast))
        self._ticks += 1
        if self._ticks % self._cool_ticks == 0:
            self._count /= 2
        self._count += observation.accesses
        level = np.clip(np.floor(np.log2(self._count + 1)), 0, BINS - 1).astype(np.int64)
        pages = observation.fast + observation.slow
        hot, warm = thresholds(level, pages, observation.capacity_pages, self._warm_below)
        cells = np.arange(len(level))
        rising = cells[(level >= hot) & (observation.slow > 0)]
        rising = rising[np.argsort(-self._count[rising], kind="stable")]
        cold = cells[(level < warm) & (observation.fast > 0)]
        cold = cold[np.argsort(self._count[cold], kind="stable")]
        spare = int(observation.capacity_pages * SPARE)
        wanted = int(observation.slow[rising].sum()) + spare - observation.free_pages
        return exchange(observation, rising, cold, wanted)


def thresholds(
    level: Integers, pages: Integers, capacity_pages: int, warm_below: float = WARM_BELOW[0]
) -> tuple[int, int]:
    """(coldest hot bin, coldest bin whose pages are not demoted).

    level, pages: (C,), the bin and the number of pages of each cell. warm_below: see WARM_BELOW.
    """
    hot, taken = hottest_that_fit(histogram(level, pages, BINS), capacity_pages * (1 - SPARE))
    warm = hot - 1 if taken < warm_below * capacity_pages and hot > 1 else hot
    return hot, warm
