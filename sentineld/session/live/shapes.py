# SPDX-License-Identifier: Apache-2.0
"""The plans of one attach, by the shape of the steps that they fit.

A training process that returns to an earlier shape (for example, to an earlier batch
size) gets the plan that was made for that shape, without a new profile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.model.tiers import Tiers
from sentineld.plan.fault_latency import with_fault_latency
from sentineld.plan.slack import sizes_of
from sentineld.plan.spare import Spare
from sentineld.profile.steps import (
    Step,
    births,
    boundary_count,
    sequence_digest,
    structure_digest,
)
from sentineld.session.live.divergence import EARNED_STEPS

SHAPES_MAX = 16
"""Maximum number of plans that are kept for a session. Plans and their profiles take memory."""
FOLLOWED_STEPS_MIN = 3
STRIKES_MAX = 3
"""A plan is dropped if it was left this number of times in a row after fewer than
FOLLOWED_STEPS_MIN steps. One time is not enough, because the shape may have changed while the plan
was made."""


@dataclass(frozen=True)
class Shape:
    """The shape of steps; all steps of one shape can follow the same plan."""

    threads: int  # number of compute threads; stretch times depend on it
    sequence: str  # digest of the sequence of allocations, frees and boundaries
    # Whether the digest leaves out the sizes of allocations (steps.structure_digest()).
    sizes_vary: bool = False

    @classmethod
    def of(cls, step: Step, threads: int) -> Shape:
        """The shape of a step that was recorded while no plan was live."""
        return cls(threads, sequence_digest(step))

    @classmethod
    def of_similar(cls, step: Step, threads: int) -> Shape:
        """The shape of all steps that differ from `step` at most in the sizes of allocations."""
        return cls(threads, structure_digest(step), sizes_vary=True)


@dataclass(frozen=True)
class Planned:
    """The profile of a shape and the plan made from it."""

    shape: Shape
    profile: Profile
    # The profile from which emulated delays are computed: that of the second step that profiling
    # observes (work/profiling.py), or `profile` if it has observed only one.
    charged: Profile
    plan: Plan
    budget_bytes: int  # the session's; includes unmanaged bytes and Substrate.reserve_bytes()
    plan_duration_s: float | None  # time to make the plan; None: an earlier daemon made it
    migration_bytes_per_s: float = 0.0  # bandwidth that the plan assumes; 0: the machine's figure
    spare: Spare | None = None  # a plan made in advance; see plan/spare.py
    # On paged tiers: the latency of a fault that the plan assumes; None: the machine's figure. A
    # session on paged tiers is never resumed, so this value is not saved.
    fault_latency_ns: float | None = None

    @property
    def name(self) -> str:
        """The name of the plan in a status reason."""
        return "the plan for steps of varying sizes" if self.shape.sizes_vary else "the plan"

    def assumed_of(self, machine_tiers: Tiers) -> Tiers:
        """The machine's tiers with the figures that the plan assumes."""
        tiers = machine_tiers
        if self.migration_bytes_per_s:
            tiers = replace(tiers, migration_bytes_per_s=self.migration_bytes_per_s)
        if self.fault_latency_ns is not None:
            tiers = with_fault_latency(tiers, self.fault_latency_ns)
        return tiers


class Shapes:
    """Plans by shape."""

    def __init__(self) -> None:
        self.unsteady = False
        """Whether fewer than EARNED_STEPS steps (divergence.py) had followed the most recently left
        plan. The next plan should then fit more than one sequence, if possible."""
        self._planned: dict[Shape, Planned] = {}
        self._strikes: dict[Shape, int] = {}

    def __len__(self) -> int:
        return len(self._planned)

    def fitting(self, step: Step, threads: int) -> Planned | None:
        """The plan for the step's own shape, or else a plan for varying sizes that fits the step,
        or None."""
        planned = self.find(Shape.of(step, threads))
        return planned or self.fitting_most([births(step)], step, threads, 1.0)

    def fitting_most(
        self, sizes: list[npt.NDArray[np.uint64]], step: Step, threads: int, share: float
    ) -> Planned | None:
        """A plan for varying sizes that fits at least this share of the given steps, or None.

        sizes: the sizes of each step's allocations. step: one of these steps.
        """
        boundaries = boundary_count(step)
        for planned in self._planned.values():
            shape, is_cut = planned.shape, planned.profile.stretches["cut"]
            if not shape.sizes_vary or shape.threads != threads:
                continue
            if np.count_nonzero(~is_cut) != boundaries:
                continue
            known = sizes_of(planned.plan.layout)
            if sum(known.accept(one.tolist()) for one in sizes) >= share * len(sizes):
                return planned
        return None

    def find(self, shape: Shape) -> Planned | None:
        """The plan for a shape, or None. The plan becomes the most recently used one."""
        planned = self._planned.pop(shape, None)
        if planned is not None:
            self._planned[shape] = planned
        return planned

    def keep(self, planned: Planned) -> None:
        """Add a plan. If there are then more than SHAPES_MAX plans, the least recently used one is
        dropped."""
        if self._planned.get(planned.shape) is not planned:
            self.forget(planned.shape)
            self._planned[planned.shape] = planned
        if len(self._planned) > SHAPES_MAX:
            self.forget(next(iter(self._planned)))

    def forget(self, shape: Shape) -> None:
        """Drop a shape's plan, so that the next step of this shape begins a new profile."""
        self._planned.pop(shape, None)
        self._strikes.pop(shape, None)

    def left(self, shape: Shape, followed_steps: int) -> None:
        """Record that steps no longer follow the shape's plan.

        followed_steps: number of steps that followed the plan. If this number is less than
        FOLLOWED_STEPS_MIN in STRIKES_MAX calls in a row, the plan is dropped: it does not fit the
        steps, although they have its shape.
        """
        self.unsteady = followed_steps < EARNED_STEPS
        strikes = self._strikes.get(shape, 0) + 1 if followed_steps < FOLLOWED_STEPS_MIN else 0
        if strikes >= STRIKES_MAX:
            self.forget(shape)
        elif shape in self._planned:
            self._strikes[shape] = strikes
