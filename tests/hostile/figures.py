# SPDX-License-Identifier: Apache-2.0
"""Measurements of the daemon and of the managed training during each attack."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """The measurements of one attack."""

    attack: str
    control: bool
    """Whether this was a control run: the training was managed by a daemon other than the attacked
    one."""
    duration_s: float
    status_worst_s: float
    """Longest time for an answer to `status` during the attack."""
    status_requests: int
    peak_bytes: int
    """Largest resident memory of the daemon."""
    log_bytes_per_min: float
    more_descriptors: int
    """Number of the daemon's open descriptors after the attack, minus the number before."""
    steps: int | None
    """Steps of the training during the attack; None: no training."""
    steps_per_s: float | None
    """The training's speed. None: there was no training, or the attack was too short, or the test
    stopped the training."""

    def __str__(self) -> str:
        parts = [
            f"{self.attack}{' (control)' if self.control else ''}: {self.duration_s:.1f} s",
            f"{self.status_requests} status requests, at worst {self.status_worst_s * 1000:.0f} ms",
            f"peak {self.peak_bytes / 2**20:.0f} MiB",
            f"log {self.log_bytes_per_min / 1000:.0f} kB/min",
            f"{self.more_descriptors} more descriptors",
        ]
        if self.steps is not None:
            parts.append(f"{self.steps} steps of the training")
        if self.steps_per_s is not None:
            parts.append(f"{self.steps_per_s:.1f} steps/s")
        return ", ".join(parts)
