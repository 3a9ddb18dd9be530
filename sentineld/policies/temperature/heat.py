# SPDX-License-Identifier: Apache-2.0
"""The temperatures of a process whose slow tier is swap, and the pages that should leave memory.

The process swaps pages in by accessing them, so a unit was used if some of its pages have returned
from swap. In addition, a scan samples units: it reads the accessed bit of one random resident page
of a unit. Dirty bits are not known, so a used unit counts as written. Each scan that finds a unit
used therefore adds the width of one bucket (buckets.py) to the unit's temperature.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Floats, Integers, Mask, Table
from sentineld.policies.temperature.carry import carried
from sentineld.policies.temperature.choice import Chooser
from sentineld.policies.temperature.history import SCANS, TEMPERATURE_MAX
from sentineld.policies.temperature.levels import Scan
from sentineld.policies.temperature.tracker import Tracker
from sentineld.policies.temperature.units import Units, no_units

LEVELS = 4
"""Levels of the multi-level queue (levels.py). At the top level, a unit is sampled in one of four
scans. vTMM (history.py) has 8 levels; with 64 scans between two samples, pages that are no longer
hot would stay in memory for minutes."""
MARGIN = 1
"""The units in this number of temperature buckets, directly below the coldest hot bucket, are paged
out only if it is not enough to page out colder units."""
REST = 8
"""For this number of scans, a unit whose pages have returned does not count as cold, and a unit
that was paged out is not prefetched."""
SLACK_SHARE = 1 / 32
"""Share of the budget that is free after page-outs. Page-outs begin when half of this share is
left, so that each of them frees a large number of pages."""


RETURN_WEIGHT = 0.25
"""Weight of the latest scan in the mean number of pages that return between two scans."""


class Sample(NamedTuple):
    """The pages whose accessed bits a scan reads."""

    units: Units
    scan: Scan  # the units that the scan examines
    sampled: Integers  # (S,), index of each sampled unit
    pages: Integers  # (S,), number of the page that represents the unit


class Heat:
    """Temperatures of units. renew() replaces the units whenever the page tables have been read."""

    def __init__(self, random: np.random.Generator) -> None:
        self.units = no_units()
        self._random = random
        self._tracker = Tracker(0, LEVELS)
        self._chooser = Chooser(0, MARGIN, REST)
        self._returned: Integers = np.zeros(0, np.int64)
        """Pages of each unit that have come back from swap since the last scan, plus 1 for each
        page-out that left all of the unit's resident pages in memory."""
        self._back: Integers = np.zeros(0, np.int64)  # as _returned, but not counting page-outs
        self._returning: Floats = np.zeros(0, np.float64)
        """Mean number of pages of each unit that come back between two scans."""
        self._recent: Floats = np.zeros(0, np.float64)
        """1 if the unit is new since the last scan, or if the last scan that observed the unit
        found it used; decreases with each further scan that observes the unit."""
        self._cold: Mask = np.zeros(0, np.bool_)
        self._wanted: Mask = np.zeros(0, np.bool_)  # hot units with swapped pages
        self._unused: Integers = np.zeros(0, np.int64)
        """Pages of each unit that were prefetched and that the process has not accessed since. The
        page tables still show them as swapped."""
        self._refused: Integers = np.zeros(0, np.int64)
        """Scans until the kernel is asked again to page the unit out."""

    def renew(self, units: Units) -> int:
        """Replace the units by the current ones, which inherit the temperatures. Units that are new
        count as used once, because the process has just written to them. Returns the number of
        pages that have returned from swap."""
        before = self.units
        origin = units.origin(before)
        self._tracker.carry(origin)
        self._chooser.carry(origin)
        self._returned, self._back = carried(self._returned, origin), carried(self._back, origin)
        self._returning = carried(self._returning, origin)
        self._recent = carried(self._recent, origin)
        self._cold, self._wanted = carried(self._cold, origin), carried(self._wanted, origin)
        self._refused = carried(self._refused, origin)
        self._unused = carried(self._unused, origin)
        back = np.zeros(len(units), np.int64)
        if units.size_pages == before.size_pages:
            less = carried(before.swapped, origin) - units.swapped
            more = units.resident - carried(before.resident, origin)
            back = np.maximum(np.minimum(less, more), 0)
        self._returned += back
        self._back += back
        self._unused = np.clip(self._unused - back, 0, units.swapped)
        born = origin < 0
        self._tracker.record(born, born)
        self._recent[born] = 1.0
        self.units = units
        return int(back.sum())

    def begin(self, samples_max: int) -> Sample:
        """Begin a scan: choose the pages to sample, at most samples_max."""
        scan = self._tracker.begin()
        due = np.flatnonzero(scan.cleared & (self.units.resident > 0))
        left_out = np.zeros(len(self.units), np.bool_)
        if len(due) > samples_max:
            self._random.shuffle(due)
            left_out[due[samples_max:]] = True
            due = np.sort(due[:samples_max])
        scan = Scan(scan.examined & ~left_out, scan.cleared & ~left_out)
        return Sample(self.units, scan, due, self.units.sample(due, self._random))

    def end(self, sample: Sample, accessed: Mask, budget_pages: int) -> None:
        """End a scan, and find the cold units. accessed: (S,), whether each sampled page was
        accessed. renew() may have been called since begin()."""
        origin = self.units.origin(sample.units)
        # Units whose bits the scan does not clear are not sampled. They are above the lowest level
        # of the queue (levels.py), because earlier scans found them used, so they count as used.
        used = sample.scan.examined & ~sample.scan.cleared
        used[sample.sampled] = accessed
        back = self._returned > 0
        found = carried(used, origin) | back
        # A return shows that a unit was used, even if the scan did not examine the unit.
        examined = carried(sample.scan.examined, origin) | back
        self._tracker.end(Scan(examined, carried(sample.scan.cleared, origin)), found, found)
        self._classify(budget_pages, examined, found)

    def end_unseen(self, budget_pages: int) -> None:
        """End a scan without accessed bits. Only units whose pages have returned, or whose page-out
        has failed, count as used."""
        everything, back = np.ones(len(self.units), np.bool_), self._returned > 0
        self._tracker.record(everything, back)
        self._classify(budget_pages, everything, back)

    def end_missed(self, budget_pages: int) -> None:
        """End a scan whose accessed bits could not be read for a temporary reason. Units whose
        pages have returned, or whose page-out has failed, count as used; of the others, nothing is
        recorded."""
        back = self._returned > 0
        self._tracker.record(back, back)
        self._classify(budget_pages, back, back)

    def _classify(self, budget_pages: int, observed: Mask, used: Mask) -> None:
        """Find the units to page out and to prefetch. observed: (N,), the units that the scan
        observed. used: (N,), those that were used."""
        units = self.units
        back = self._returned > 0
        self._chooser.moved(np.flatnonzero(back), np.zeros(0, np.int64))
        choice = self._chooser.choose(
            self._tracker.temperature(), units.resident, units.swapped, budget_pages
        )
        self._cold = np.zeros(len(units), np.bool_)
        self._cold[choice.falling] = True
        self._wanted = np.zeros(len(units), np.bool_)
        self._wanted[choice.rising] = True
        # A unit is fetched only while the process uses it: other pages of it must have returned, or
        # a page-out of it must have failed. If the last prefetch was not used, another one would
        # read the same pages again: the kernel may have reclaimed them, or they are in memory.
        self._wanted &= back & (2 * self._unused <= units.swapped)
        self._returned[:] = 0
        self._returning += RETURN_WEIGHT * (self._back - self._returning)
        self._back[:] = 0
        self._recent[observed] *= 1 - 1 / SCANS
        self._recent[observed & used] = 1.0
        self._refused[self._refused > 0] -= 1

    def to_page_out(self, pages_max: int) -> Table:
        """The resident runs to page out, up to pages_max pages; PAGE_RUN_DTYPE. The runs of cold
        units come first, then those of other units; in both groups, the coldest units come first. A
        unit whose page-out failed is left out for a number of scans (REST); see paged_out()."""
        resident = np.flatnonzero((self.units.resident > 0) & (self._refused == 0))
        temperature = self._tracker.temperature()[resident]
        order = np.lexsort((temperature, ~self._cold[resident]))
        return self.units.ranges(resident[order], True, pages_max)

    def paged_out(self, asked: Integers, runs: Table) -> int:
        """Record the result of asking the kernel to page out runs that came from to_page_out().

        asked: the distinct numbers of these runs' units. runs: all pages of these units, read after
        the kernel was asked; PAGE_RUN_DTYPE. Returns the number of pages that have left memory. If
        no page of a unit has left, the process has accessed all of them again immediately, or the
        kernel has kept them. These cases cannot be distinguished. So in both, the unit counts as
        used, and to_page_out() leaves it out for a number of scans (REST).
        """
        before = self.units
        self.renew(before.replaced(asked, runs))
        units = self.units
        origin = units.origin(before)
        gone = carried(before.resident, origin) - units.resident
        of_asked = np.isin(units.numbers, asked)
        self._chooser.moved(np.zeros(0, np.int64), np.flatnonzero(of_asked & (gone > 0)))
        stayed = of_asked & (gone <= 0)
        self._unused[of_asked & (gone > 0)] = 0
        self._refused[stayed] = REST
        self._returned[stayed] += 1
        return int(np.maximum(gone[of_asked], 0).sum())

    def fault_rates(
        self, window_s: float, interval_s: float, seen: bool
    ) -> tuple[Floats, Integers]:
        """(M,), (M,): faults per second that each page of a group of pages would cause if it were
        not in memory, and the number of pages in the group. curve.py describes the model.

        window_s: length of a window. A page that is accessed at least once in a window counts as
            used in it. interval_s: mean time between the ends of two scans. seen: whether the scans
            read accessed bits.

        Each unit has two groups: its resident pages and its pages in swap. The rate of the resident
        pages follows from the share of the scans that found the unit used. The birth of a unit,
        which counts as a scan, is left out of this share; a unit that no scan has examined since
        its birth counts as used in each scan. If no accessed bits are read, nothing is known of
        pages that stay in memory. The share is then assumed. It is set to 1 by the unit's birth, by
        a return of some of its pages, by a failed page-out, and by earlier scans that read accessed
        bits and found the unit used. It decreases with each further scan until the unit counts as
        idle. The rate of the pages in swap follows from the mean number of the unit's pages that
        return between two scans.
        """
        units, scans = self.units, self._tracker.scans
        if seen:
            found_used = self._tracker.temperature() / (TEMPERATURE_MAX / SCANS) - (scans <= SCANS)
            share = np.where(scans > 1, found_used / np.maximum(scans - 1, 1), 1.0)
        else:
            share = np.where(self._recent * SCANS >= 1, self._recent, 0.0)
        returning = self._returning / np.maximum(units.swapped, 1) / interval_s
        rates = np.concatenate([share / window_s, np.minimum(returning, 1 / window_s)])
        return rates, np.concatenate([units.resident, units.swapped])

    def to_fetch(self, pages_max: int) -> Table:
        """The swapped runs to prefetch, up to pages_max pages; PAGE_RUN_DTYPE. Further calls return
        no runs until the next scan."""
        found = self.units.ranges(np.flatnonzero(self._wanted), False, max(pages_max, 0))
        self._wanted[:] = False
        return found

    def fetched(self, runs: Table) -> None:
        """Record that runs that came from to_fetch() are being prefetched; PAGE_RUN_DTYPE. A unit
        is prefetched again only if at most half of its swapped pages are such pages."""
        units = self.units
        number = runs["page"] // units.size_pages
        known = np.isin(number, units.numbers)
        at = np.searchsorted(units.numbers, number[known])
        np.add.at(self._unused, at, runs["pages"][known])
        self._unused = np.minimum(self._unused, units.swapped)


def excess_pages(resident_pages: int, budget_pages: int) -> int:
    """Number of pages that should leave memory."""
    slack = int(budget_pages * SLACK_SHARE)
    if resident_pages <= budget_pages - slack // 2:
        return 0
    return resident_pages - (budget_pages - slack)


def room_pages(resident_pages: int, budget_pages: int) -> int:
    """Number of pages that can be prefetched."""
    return max(budget_pages - int(budget_pages * SLACK_SHARE) - resident_pages, 0)
