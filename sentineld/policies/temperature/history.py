# SPDX-License-Identifier: Apache-2.0
"""The accessed and dirty bits that the last scans found, and the temperature computed from them.

The rule is that of vTMM (EuroSys 2023; HMM-V, arXiv 2209.13111): written pages are hotter than
pages that are only read, because writes to slow memory cost more. The paper's text was not
available, so the constants are those of a third-party re-implementation in Linux 5.15
(Leechangjun1011/mttm, mm/vtmm_scan.c) and may differ from the paper's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sentineld.model.arrays import Integers, Mask
from sentineld.policies.temperature.carry import carried

SCANS = 20
"""Number of scans that are remembered for each unit. Older scans no longer count, so the
temperature decays."""

ACCESSED_WEIGHT, WRITTEN_WEIGHT = 2, 3
"""Temperature that each remembered scan adds if it found the accessed bit set, and temperature that
it adds if it found the dirty bit set. The processor sets both bits at a write."""

TEMPERATURE_MAX = SCANS * (ACCESSED_WEIGHT + WRITTEN_WEIGHT)


class History:
    """The last SCANS scans of N units. A unit is a page, a huge page or a range of pages."""

    def __init__(self, count: int) -> None:
        """count: N. All units begin at temperature 0."""
        self._accessed = _Bits(count)
        self._written = _Bits(count)
        self.scans: Integers = np.zeros(count, np.int64)
        """(N,): number of scans that examined the unit; at most SCANS + 1, which means that the
        first of these scans is no longer remembered."""

    def record(self, units: Mask, accessed: Mask, written: Mask) -> None:
        """Add a scan.

        units: (N,), the units that the scan examined; the others keep their history.
        accessed, written: (N,), whether the scan found the accessed bit set, and whether it found
            the dirty bit set.
        """
        self._accessed.push(units, accessed)
        self._written.push(units, written)
        self.scans[units] = np.minimum(self.scans[units] + 1, SCANS + 1)

    def forget(self, units: Mask) -> None:
        """Clear the history of units whose pages were freed. units: (N,)."""
        self._accessed.clear(units)
        self._written.clear(units)
        self.scans[units] = 0

    def carry(self, origin: Integers) -> None:
        """Replace the units. origin: see carried()."""
        self._accessed.carry(origin)
        self._written.carry(origin)
        self.scans = carried(self.scans, origin)

    def temperature(self) -> Integers:
        """(N,): 0 (idle in all remembered scans) to TEMPERATURE_MAX (written in all of them)."""
        return ACCESSED_WEIGHT * self._accessed.ones + WRITTEN_WEIGHT * self._written.ones


class _Bits:
    """The last SCANS bits of each unit, the latest in bit 0, and the number of ones."""

    def __init__(self, count: int) -> None:
        self.ones: Integers = np.zeros(count, np.int64)
        self._bits: npt.NDArray[np.uint32] = np.zeros(count, np.uint32)

    def push(self, units: Mask, found: Mask) -> None:
        new = found[units]
        old = self._bits[units]
        # The number of ones is stored and updated, because counting them with
        # numpy.bitwise_count() would need numpy 2.0.
        self.ones[units] += new.astype(np.int64) - ((old >> (SCANS - 1)) & 1).astype(np.int64)
        self._bits[units] = ((old << 1) | new.astype(np.uint32)) & ((1 << SCANS) - 1)

    def carry(self, origin: Integers) -> None:
        self.ones = carried(self.ones, origin)
        self._bits = carried(self._bits, origin)

    def clear(self, units: Mask) -> None:
        self.ones[units] = 0
        self._bits[units] = 0
