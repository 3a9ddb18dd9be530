# SPDX-License-Identifier: Apache-2.0
"""What each attack did to the daemon and to the training beside it, as measured."""

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
    quiet_steps_per_s: float | None
    """Speed of the training just before the attack; None: not measured."""

    @property
    def speed_share(self) -> float | None:
        """The training's speed during the attack as a share of that before it."""
        if self.steps_per_s is None or not self.quiet_steps_per_s:
            return None
        return self.steps_per_s / self.quiet_steps_per_s

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
            parts.append(f"{self.speed_share:.1%} of its speed before")
        return ", ".join(parts)


@dataclass(frozen=True)
class Measurement:
    """How `make bench-attacks` measures the training's speed; tests do not."""

    quiet_s: float = 8.0
    """Time before each attack in which the undisturbed speed is measured."""
    hold_factor: float = 3.0
    """By how much longer than in the tests an attack lasts."""
    training_cpu: int = 0
    """The training has this CPU to itself. The CPU time that attackers take from a training that
    shares CPUs with them is not the daemon's doing."""
    other_cpu: int = 1
    """The CPU of the daemon, the attackers and the unmanaged run."""
