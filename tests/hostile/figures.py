# SPDX-License-Identifier: Apache-2.0
"""Measurements of the daemon and of the training beside it during each attack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """One attack."""

    attack: str
    duration_s: float
    status_worst_s: float
    """Longest time for an answer to `status` during the attack."""
    status_requests: int
    peak_bytes: int
    """Largest resident memory of the daemon."""
    log_bytes_per_min: float
    more_descriptors: int
    """Descriptors of the daemon that stayed open after the attack."""
    steps: int | None
    """Steps of the training during the attack; None: no training."""
    steps_per_s: float | None
    expected_steps_per_s: float | None
    """Speed of the training beside an ordinary program that keeps the other CPU as busy as the
    attack kept it; None if the speed was not measured."""

    @property
    def speed_share(self) -> float | None:
        """The training's speed during the attack as a share of the expected speed."""
        if self.steps_per_s is None or not self.expected_steps_per_s:
            return None
        return self.steps_per_s / self.expected_steps_per_s

    def __str__(self) -> str:
        parts = [
            f"{self.attack}: {self.duration_s:.1f} s",
            f"status at worst {self.status_worst_s * 1000:.0f} ms of {self.status_requests}",
            f"peak {self.peak_bytes / 2**20:.0f} MiB",
            f"log {self.log_bytes_per_min / 1000:.0f} kB/min",
            f"{self.more_descriptors} more descriptors",
        ]
        if self.steps is not None:
            parts.append(f"{self.steps} steps of the training ({self.steps_per_s:.1f}/s)")
        if self.speed_share is not None:
            parts.append(f"{self.speed_share:.1%} of the expected speed")
        return ", ".join(parts)
