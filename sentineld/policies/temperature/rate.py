# SPDX-License-Identifier: Apache-2.0
"""A limit on the rate of moves: a token bucket without a clock."""

from __future__ import annotations


class RateLimit:
    """Grants at most pages_per_s pages a second. The unused part accumulates, up to burst_pages."""

    def __init__(self, pages_per_s: float, burst_pages: float) -> None:
        """The first call of grant() can grant up to burst_pages pages."""
        self._pages_per_s = pages_per_s
        self.burst_pages = burst_pages
        self._saved_pages = burst_pages

    def grant(self, elapsed_s: float, wanted_pages: int) -> int:
        """Return the number of the wanted pages that may be moved now.

        elapsed_s: seconds since the last call.
        """
        saved = self._saved_pages + elapsed_s * self._pages_per_s
        self._saved_pages = min(saved, self.burst_pages)
        granted = max(min(int(self._saved_pages), wanted_pages), 0)
        self._saved_pages -= granted
        return granted
