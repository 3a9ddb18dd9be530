# SPDX-License-Identifier: Apache-2.0
"""The multi-level queue: the bits of pages that are known to be used are cleared less often.

To clear an accessed bit, a scan has to flush the TLB entry, and the next access walks the page
table again. So a unit that was found accessed rises a level, and its bits are then cleared in only
one of 2^(level - 1) scans; a unit that was found idle falls a level. A bit that is not cleared
stays set. Therefore, a unit that was accessed soon after its bits were cleared is counted as
accessed in every scan until they are cleared again.

The levels are those of vTMM. As in the re-implementation of vTMM that history.py names, the scan
after a unit's rise skips the unit. A unit that stays at the top level does not rise, so no scan
skips it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sentineld.model.arrays import Integers, Mask
from sentineld.policies.temperature.carry import carried

LEVELS = 8
"""Number of levels. At the top level, a unit's bits are cleared in one of 64 scans."""


class Scan(NamedTuple):
    """The units whose bits a scan reads, and those whose bits it clears, as masks of N units."""

    examined: Mask  # (N,): read the accessed and dirty bits
    cleared: Mask  # (N,), only examined units: also clear these bits


class Levels:
    """The level of each of N units, and the number of scans until its bits are cleared."""

    def __init__(self, count: int, levels: int = LEVELS) -> None:
        """count: N. levels: 1 to LEVELS; with 1, every scan clears the bits of all units."""
        self._top = levels - 1
        self.level: Integers = np.zeros(count, np.int64)
        """(N,): 0 (found idle) to the top level."""
        self._left: Integers = np.zeros(count, np.int64)
        self._skipped: Mask = np.zeros(count, np.bool_)

    def begin(self) -> Scan:
        """Begin a scan. Call end() when the bits have been read."""
        examined = ~self._skipped
        self._skipped[:] = False
        self._left[examined & (self._left > 0)] -= 1
        return Scan(examined, examined & (self._left == 0))

    def end(self, cleared: Mask, used: Mask) -> None:
        """End a scan: change the level of the units whose bits it cleared.

        cleared: (N,), see Scan. used: (N,), whether the accessed or the dirty bit was set.
        """
        rising = cleared & used & (self.level < self._top)
        falling = cleared & ~used & (self.level > 0)
        self.level[rising] += 1
        self.level[falling] -= 1
        self._left[cleared] = pause(self.level[cleared])
        self._skipped |= rising

    def forget(self, units: Mask) -> None:
        """Set units to the lowest level, because their pages were freed. units: (N,)."""
        self.level[units] = 0
        self._left[units] = 0
        self._skipped[units] = False

    def carry(self, origin: Integers) -> None:
        """Replace the units by new ones, which take over the levels of their origins. origin: see
        carried(). Units without an origin are at the lowest level."""
        self.level = carried(self.level, origin)
        self._left = carried(self._left, origin)
        self._skipped = carried(self._skipped, origin)


def pause(level: Integers) -> Integers:
    """The number of scans until a unit's bits are cleared again, given its level after a scan that
    cleared them. Both 0 and 1 mean the next scan that examines the unit."""
    found: Integers = (1 << level) >> 1
    return found
