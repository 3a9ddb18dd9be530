# SPDX-License-Identifier: Apache-2.0
"""The interval between scans that keeps their CPU time within a share of one core."""

from __future__ import annotations

WEIGHT = 0.25
"""Weight of the latest scan in the mean CPU time of a scan."""


class Pacing:
    """Computes the interval from the CPU time that scans take. It has no clock."""

    def __init__(self, cpu_share: float, least_s: float, most_s: float) -> None:
        """cpu_share: the share of one core, 0..1. least_s, most_s: limits of the interval. If a
        scan takes more than cpu_share * most_s of CPU time, the scans exceed their share."""
        self._cpu_share = cpu_share
        self._least_s, self._most_s = least_s, most_s
        self._mean_s: float | None = None

    def note(self, cpu_s: float) -> None:
        """Record the CPU time of a scan."""
        mean_s = cpu_s if self._mean_s is None else self._mean_s
        self._mean_s = mean_s + WEIGHT * (cpu_s - mean_s)

    @property
    def interval_s(self) -> float:
        """Time from the beginning of a scan to that of the next one."""
        return min(max((self._mean_s or 0.0) / self._cpu_share, self._least_s), self._most_s)
