# SPDX-License-Identifier: Apache-2.0
"""Policy `numab`: promote pages that fault soon after a scan; each hint fault costs time.

Based on the tiering mode of Linux's NUMA balancing (numa_balancing=2, Linux 6.3): each scan makes
the pages of the slow node fault at their next access. The time from the scan to the fault is the
page's hint-fault latency: a page with a latency below the threshold is hot and is promoted. If more
than 1/16 of the fast node is free, every page that faults is promoted. If the free share of the
fast node is below a watermark, the least recently accessed pages are demoted. Published scan period
and threshold: 1 s each.

Unlike under `tpp`, one fault is enough for a promotion. A fault takes the same time as under `tpp`
(HINT_FAULT_NS), whether or not the page is promoted, because the faulting thread does not copy the
page: in the simulator, pages are copied in the background under every policy. Left out: the limit
of 256 MiB for a scan, the limit on the rate of promotions (off by default), and the threshold's
adaptation to this rate.
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
    without_move_limit,
)

SCAN_S = 1.0

SETTINGS = ((1.0, 0.002), (0.25, 0.002), (1.0, 0.02))
"""(threshold of the hint-fault latency, in scan periods; demotion watermark, as a share of the fast
tier). The first pair is the published threshold and a watermark similar to the kernel's watermarks,
which are 0.1 % of the node apart (watermark_scale_factor)."""

PLENTY = 1 / 16
"""If more than this share of the fast tier is free, all pages that fault are promoted."""


@register()
class NumaBalancing(ReactivePolicy):
    """Policy `numab`; see the module's docstring."""

    name = "numab"
    published_s = SCAN_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy. The intervals are those between two scans, not between two ticks."""
        return [
            (
                f"hot within {within:.0%} of it, demotes below {share:.1%} free",
                partial(HintFaults, hot_within=within, demote_below=share),
            )
            for within, share in SETTINGS
        ]


class HintFaults:
    """The state of the scans: when each cell was made to fault, and which cells to promote.

    tick() is called at every boundary, so that the time of a fault is known to within a stretch.
    All pages of a cell fault in the same stretch, each once.
    """

    interval_ns = 0.0

    def __init__(
        self,
        scan_ns: float,
        hot_within: float = SETTINGS[0][0],
        demote_below: float = SETTINGS[0][1],
    ) -> None:
        """scan_ns: time between two scans. hot_within, demote_below: see SETTINGS."""
        self._scan_ns = scan_ns
        self._hot_ns = hot_within * scan_ns
        self._demote_below = demote_below
        self._last_use = LastUse()
        self._hinted_ns = np.zeros(0)  # time of the scan that makes a cell fault; nan: none
        self._rising = np.zeros(0, np.bool_)  # cells to promote; see tick()
        self._before_ns = 0.0  # time of the last tick
        self._scanned_ns = -np.inf
        self._faults = 0

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Promote the pages that faulted soon after a scan, and start a scan if one is due; see
        Reactor."""
        if not len(self._rising):
            self._hinted_ns = np.full(len(observation.fast), np.nan)
            self._rising = np.zeros(len(observation.fast), np.bool_)
        used = observation.accesses > 0
        self._last_use.tick(used)
        faulting = used & ~np.isnan(self._hinted_ns)
        self._faults = int(observation.slow[faulting].sum())
        # The time of the fault within the stretch that has just ended is unknown: assume the
        # beginning of the stretch.
        hot = faulting & (self._before_ns - self._hinted_ns <= self._hot_ns)
        plenty = observation.free_pages > PLENTY * observation.capacity_pages
        self._rising |= faulting if plenty else hot
        self._rising &= observation.slow > 0
        self._hinted_ns[faulting | (observation.slow == 0)] = np.nan
        self._before_ns = observation.now_ns
        rising = np.flatnonzero(self._rising)
        if observation.now_ns - self._scanned_ns >= self._scan_ns:
            # Start a scan. This tick is the last that requests the promotions not yet complete.
            self._rising[:] = False
            self._scanned_ns = observation.now_ns
            armed = np.isnan(self._hinted_ns) & (observation.slow > 0)
            self._hinted_ns[armed] = observation.now_ns
        demoted = pages_below(observation, rising, self._demote_below)
        if not len(rising) and not demoted:
            return []
        cold = self._last_use.oldest(observation.fast > 0)
        return exchange(without_move_limit(observation), rising, cold, demoted)

    def delay_ns(self) -> float:
        """Time of the hint faults of the stretch that has just ended; see DelayingReactor."""
        return self._faults * HINT_FAULT_NS
