# SPDX-License-Identifier: Apache-2.0
"""The plans of one attach, by the shape of the steps that they fit.

A training that takes up a shape again (another batch size, another length of
its sequences) gets the plan that it had for it, without a new profile.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.spare import Spare
from sentineld.profile.steps import Step, sequence_digest

SHAPES_MAX = 16
"""Plans kept for one session, a MiB each at most; those used last."""
FOLLOWED_STEPS_MIN = 3
STRIKES_MAX = 3
"""A plan may be left at once because another shape's turn has come while it was made."""


@dataclass(frozen=True)
class Shape:
    """What tells steps apart: sequence (of allocations, frees and boundaries) and the number of
    threads that compute, for which plans differ even where the sequence does not."""

    threads: int
    sequence: str

    @classmethod
    def of(cls, step: Step, threads: int) -> Shape:
        """Of a step that was recorded while no plan was live."""
        return cls(threads, sequence_digest(step))


@dataclass(frozen=True)
class Planned:
    """What a step of this shape does, and what to do about it. charged: what emulated tiers charge
    for, from another recording than the plan's; else the profile. plan_duration_s: None for a plan
    of a daemon before this one. migration_bytes_per_s: what the plan counts upon; 0: what the
    machine promises. spare: another plan for the same, with less bandwidth."""

    shape: Shape
    profile: Profile
    charged: Profile
    plan: Plan
    budget_bytes: int
    plan_duration_s: float | None
    migration_bytes_per_s: float = 0.0
    spare: Spare | None = None


class Shapes:
    """Plans by shape."""

    def __init__(self) -> None:
        self._planned: dict[Shape, Planned] = {}
        self._strikes: dict[Shape, int] = {}

    def __len__(self) -> int:
        return len(self._planned)

    def find(self, shape: Shape) -> Planned | None:
        """The plan for a shape, which is then the one used last."""
        planned = self._planned.pop(shape, None)
        if planned is not None:
            self._planned[shape] = planned
        return planned

    def keep(self, planned: Planned) -> None:
        """Have a plan found from now on; the one that was used longest ago may go."""
        if self._planned.get(planned.shape) is not planned:
            self.forget(planned.shape)
            self._planned[planned.shape] = planned
        if len(self._planned) > SHAPES_MAX:
            self.forget(next(iter(self._planned)))

    def forget(self, shape: Shape) -> None:
        """Have the shape planned anew when it comes next."""
        self._planned.pop(shape, None)
        self._strikes.pop(shape, None)

    def left(self, shape: Shape, followed_steps: int) -> None:
        """So many steps followed the shape's plan before it was left: one that no step follows
        time and again is forgotten, as it does not fit them although they look alike."""
        strikes = self._strikes.get(shape, 0) + 1 if followed_steps < FOLLOWED_STEPS_MIN else 0
        if strikes >= STRIKES_MAX:
            self.forget(shape)
        elif shape in self._planned:
            self._strikes[shape] = strikes
