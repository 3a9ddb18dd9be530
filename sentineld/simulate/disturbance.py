# SPDX-License-Identifier: Apache-2.0
"""Deviations from a plan's assumptions: random noise, wrong stretch times, less bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats

FACTOR_MIN = 0.1
"""Lower limit of each noise factor and of each skew factor. Both multiply a stretch's profiled
time."""


@dataclass(frozen=True)
class Disturbance:
    """How a simulated training run deviates from the profile and the tiers."""

    noise: float = 0.0
    """Relative standard deviation of each stretch's time with all memory fast (its all-fast time).
    New times are drawn for each step."""
    interference: float = 0.0
    """Share of the migration bandwidth that other processes use."""
    seed: int = 1
    """Seed for noise and skew."""
    skew: float = 0.0
    """Like `noise`, but the times are drawn once for all steps. This models errors in the
    profile."""

    def __post_init__(self) -> None:
        if not all(0 <= part <= 2 for part in (self.noise, self.skew)):
            raise SentinelError(
                "usage",
                f"noise {self.noise:g} or skew {self.skew:g} is out of range",
                "give 0 to 2 for each",
            )
        if not 0 <= self.interference < 1:
            raise SentinelError(
                "usage",
                f"an interference of {self.interference:g} is out of range",
                "give 0 to less than 1",
            )

    @property
    def disturbs(self) -> bool:
        """Whether anything differs from the plan's assumptions."""
        return bool(self.noise or self.skew or self.interference)

    def skew_factors(self, stretches: int) -> Floats:
        """(S,): all-fast time of each stretch, divided by its profiled time, without noise."""
        random = np.random.default_rng([self.seed, 0x5E57])
        return _factors(random, self.skew, stretches)

    def steps(self, stretches: int, seed: int) -> StepFactors:
        """Factors for a run of steps; runs with different seeds get different noise."""
        return StepFactors(self, stretches, seed)


class StepFactors:
    """Draws the factors of each step: each stretch's all-fast time divided by its profiled time."""

    def __init__(self, disturbance: Disturbance, stretches: int, seed: int) -> None:
        self._noise, self._stretches = disturbance.noise, stretches
        self._skew = disturbance.skew_factors(stretches) if disturbance.skew else None
        self._random = np.random.default_rng(disturbance.seed + seed)

    def next(self) -> Floats | None:
        """(S,), the next step's factors; None: all 1."""
        if not self._noise:
            return self._skew
        drawn = _factors(self._random, self._noise, self._stretches)
        return drawn if self._skew is None else drawn * self._skew


def _factors(random: np.random.Generator, deviation: float, count: int) -> Floats:
    factors: Floats = np.maximum(random.normal(1.0, deviation, count), FACTOR_MIN)
    return factors
