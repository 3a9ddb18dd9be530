# SPDX-License-Identifier: Apache-2.0
"""Policy `vtmm`: promote the hottest pages that fit, by buckets of similar temperature.

Based on vTMM (EuroSys 2023), earlier named HMM-V (arXiv 2209.13111). vTMM manages the memory of
virtual machines: the hypervisor scans page tables for accessed and dirty bits. Each page has a
temperature, which rises with the number of the last 20 scans that found the page accessed. A scan
that found the page written counts more (policies/temperature/history.py names the source of the
constants). Pages of similar temperature form a bucket (policies/temperature/buckets.py). The hot
set consists of the hottest buckets that fit into the fast tier. Hot slow pages are promoted, the
hottest first; cold fast pages are demoted to make room, the coldest first. A queue of eight levels
saves work: the bits of pages that are known to be used are cleared less often. Published interval
between scans: 600 ms.

Bits are read without faults, so observation delays no access, unlike under `tpp` and `numab`. Left
out: the cost of scanning and of flushing TLBs, dirty pages that a move has to copy again, and the
division of fast memory between several virtual machines. All of these omissions favour the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.registry import register
from sentineld.policies.rivals.reactive import ReactivePolicy, Setting, exchange
from sentineld.policies.temperature.choice import Chooser
from sentineld.policies.temperature.levels import LEVELS
from sentineld.policies.temperature.tracker import Tracker

SCAN_S = 0.6
LEVEL_COUNTS = (LEVELS, 1)
"""Numbers of levels of the queue that are tried, the published one first. With one level, each scan
clears the bits of all pages."""

MARGINS = (0, 1)
"""Values of the margin: the pages of this number of buckets, directly below the hot buckets, are
not demoted. The published value comes first."""


@register()
class Vtmm(ReactivePolicy):
    """Policy `vtmm`; see the module's docstring."""

    name = "vtmm"
    published_s = SCAN_S

    def settings(self) -> Sequence[Setting]:
        """See ReactivePolicy."""
        return [
            (f"levels: {levels}, margin: {margin}", partial(Scans, levels=levels, margin=margin))
            for levels in LEVEL_COUNTS
            for margin in MARGINS
        ]


class Scans:
    """The policy's state: the bits that are set in the page tables, and the temperatures. All pages
    of a cell have the same bits."""

    def __init__(
        self, interval_ns: float, levels: int = LEVEL_COUNTS[0], margin: int = MARGINS[0]
    ) -> None:
        """levels, margin: see LEVEL_COUNTS and MARGINS."""
        self.interval_ns = interval_ns
        self._levels, self._margin = levels, margin
        self._tracker, self._chooser = Tracker(0, levels), Chooser(0, margin)
        self._accessed = np.zeros(0, np.bool_)
        self._dirty = np.zeros(0, np.bool_)

    def tick(self, observation: Observation) -> list[MoveRequest]:
        """Scan the bits, then promote pages of the hot set and demote others; see Reactor."""
        count = len(observation.fast)
        if not len(self._accessed):
            self._tracker = Tracker(count, self._levels)
            self._chooser = Chooser(count, self._margin)
            self._accessed, self._dirty = np.zeros((2, count), np.bool_)
        self._accessed |= observation.accesses > 0
        self._dirty |= observation.written
        scan = self._tracker.begin()
        self._tracker.end(scan, self._accessed, self._dirty)
        absent = observation.fast + observation.slow == 0
        self._tracker.forget(absent)
        for bits in (self._accessed, self._dirty):
            bits[scan.cleared | absent] = False
        choice = self._chooser.choose(
            self._tracker.temperature(),
            observation.fast,
            observation.slow,
            observation.capacity_pages,
        )
        wanted = int(observation.slow[choice.rising].sum()) - observation.free_pages
        return exchange(observation, choice.rising, choice.falling, wanted)
