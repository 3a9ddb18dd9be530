# SPDX-License-Identifier: Apache-2.0
"""What a plan could not foresee: times that scatter or are others, bandwidth that others take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.model.arrays import Floats

FACTOR_MIN = 0.1
"""No stretch takes less than this part of its time, however it is disturbed."""


@dataclass(frozen=True)
class Disturbance:
    """noise: standard deviation of each stretch's all-fast time, as a part of it, step by step
    anew. skew: the same, but once for all steps: how far off the profiled times are.
    interference: the part of the migration bandwidth that others take, unforeseen by the plan."""

    noise: float = 0.0
    interference: float = 0.0
    seed: int = 1
    skew: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= part <= 2 for part in (self.noise, self.skew)):
            raise SentinelError(
                "usage", f"noise {self.noise:g} and skew {self.skew:g}", "give 0 to 2 for each"
            )
        if not 0 <= self.interference < 1:
            raise SentinelError(
                "usage", f"an interference of {self.interference:g}", "give 0 to less than 1"
            )

    @property
    def disturbs(self) -> bool:
        """Whether anything is otherwise than foreseen."""
        return bool(self.noise or self.skew or self.interference)

    def paces(self, stretches: int) -> Floats:
        """(S,): what each stretch takes in all steps, over its profiled time."""
        random = np.random.default_rng([self.seed, 0x5E57])
        return _factors(random, self.skew, stretches)

    def steps(self, stretches: int, seed: int) -> StepFactors:
        """The steps' factors, one after the other; the seed tells one run of steps from another."""
        return StepFactors(self, stretches, seed)


class StepFactors:
    """How long each stretch of a step takes, over its profiled time."""

    def __init__(self, disturbance: Disturbance, stretches: int, seed: int) -> None:
        self._noise, self._stretches = disturbance.noise, stretches
        self._paces = disturbance.paces(stretches) if disturbance.skew else None
        self._random = np.random.default_rng(disturbance.seed + seed)

    def next(self) -> Floats | None:
        """(S,) of the next step; None: as profiled."""
        if not self._noise:
            return self._paces
        drawn = _factors(self._random, self._noise, self._stretches)
        return drawn if self._paces is None else drawn * self._paces


def _factors(random: np.random.Generator, deviation: float, count: int) -> Floats:
    factors: Floats = np.maximum(random.normal(1.0, deviation, count), FACTOR_MIN)
    return factors
