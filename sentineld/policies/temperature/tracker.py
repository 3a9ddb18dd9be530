# SPDX-License-Identifier: Apache-2.0
"""The temperatures of the pages of a process, scan by scan.

The tracker selects units for each scan; the caller reads and clears their bits:

    scan = tracker.begin()
    ...read the accessed and dirty bits of scan.examined, clear those of scan.cleared...
    tracker.end(scan, accessed, written)
"""

from __future__ import annotations

from sentineld.model.arrays import Integers, Mask
from sentineld.policies.temperature.history import History
from sentineld.policies.temperature.levels import LEVELS, Levels, Scan


class Tracker:
    """Histories and levels (levels.py) of N units: pages, huge pages or ranges of pages."""

    def __init__(self, count: int, levels: int = LEVELS) -> None:
        """count: N. levels: see Levels."""
        self._history = History(count)
        self._levels = Levels(count, levels)

    def begin(self) -> Scan:
        """Begin a scan; returns the units whose bits must be read, and those whose bits must be
        cleared."""
        return self._levels.begin()

    def end(self, scan: Scan, accessed: Mask, written: Mask) -> None:
        """End a scan. accessed, written: (N,), the bits that were found; bits of units that were
        not examined are ignored."""
        self._history.record(scan.examined, accessed, written)
        self._levels.end(scan.cleared, accessed | written)

    def forget(self, units: Mask) -> None:
        """Treat the units as new, because their pages were freed. units: (N,)."""
        self._history.forget(units)
        self._levels.forget(units)

    def carry(self, origin: Integers) -> None:
        """Replace the units. origin: see carried() in carry.py; units without one count as new."""
        self._history.carry(origin)
        self._levels.carry(origin)

    def record(self, units: Mask, used: Mask) -> None:
        """Record accesses that were not found by a scan of bits.

        units: (N,), the units that were observed. used: (N,), whether they were accessed.
        """
        self._history.record(units, used, used)

    @property
    def scans(self) -> Integers:
        """(N,): see History.scans."""
        return self._history.scans

    def temperature(self) -> Integers:
        """(N,): see History.temperature()."""
        return self._history.temperature()
