# SPDX-License-Identifier: Apache-2.0
"""Decides, from steps that were recorded without a plan, which plan to enter or to make."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from sentineld.plan.slack import sizes_of
from sentineld.profile.sizes import SeenSteps, Similar
from sentineld.profile.steps import Step
from sentineld.session.live.shapes import Planned, Shape, Shapes

OTHER_SHAPE_STEPS = 8
"""Within this number of steps after a plan was left, the session enters that plan again only if two
steps in a row have its shape. Later, a single step of its shape is enough. If the plan that was
left had not paid off (EARNED_STEPS in live/divergence.py), the session waits for SIZES_STEPS steps
before it enters or makes any plan. If the first OTHER_SHAPE_STEPS of these steps are identical, it
does not wait for the rest."""
SIZES_STEPS = 16
"""Number of steps to record before a plan for varying sizes is made. Its slots are as large as the
largest allocations in these steps; steps with larger allocations will not fit the plan. If the
lengths of batches are distributed uniformly, the longest of 16 exceeds 94 % of all lengths on
average."""
SIZE_CHANGES_MIN = 2
"""Minimum number of changes of the allocation sequence, from one recorded step to the next, for
which a plan for varying sizes is made. After a single change, a long phase of identical steps may
follow. For such a phase, a plan for one sequence is better."""
SIMILAR_SHARE = 0.75
"""Minimum share of the recorded steps that a plan for varying sizes must fit."""


class Sample(NamedTuple):
    """The decision to sample a step and to make a plan from it."""

    shape: Shape
    similar: Similar | None  # the steps that the plan must fit; None: only identical steps
    reason: str


class Choosing:
    """Decides, during one pass of profiling, which plan to enter or to make."""

    def __init__(self, shapes: Shapes, left: Shape | None) -> None:
        """shapes: the session's plans. left: the shape whose plan the steps no longer follow."""
        self._shapes = shapes
        self._left = left
        self._steps = 0
        self._seen = SeenSteps()

    def warm_up(self, step: Step) -> None:
        """Add a step of the warm-up to the recorded steps that add() compares. Does not choose a
        plan."""
        self._seen.add(step)

    def add(self, step: Step, threads: int, repeated: bool) -> Planned | Sample | None:
        """Consider one more step; returns the plan to enter, a Sample if a step must be sampled, or
        None if more steps are needed.

        threads: number of compute threads. repeated: whether the step is identical to the previous
        one.
        """
        self._steps += 1
        self._seen.add(step)
        full = self._seen.count >= SIZES_STEPS
        if full and not self._seen.steady(None) and self._seen.changes >= SIZE_CHANGES_MIN:
            choice = self._similar(threads)
            if choice is not None:
                return choice
        decided = full or self._decided()
        if full:
            self._seen = SeenSteps()
        known = (
            self._known(step, threads, repeated) if decided or not self._shapes.unsteady else None
        )
        if known is None and decided and repeated:
            return Sample(Shape.of(step, threads), None, "two steps allocated identically")
        return known

    def _decided(self) -> bool:
        """Whether the recorded steps, although fewer than SIZES_STEPS, show that steps repeat."""
        if self._shapes.unsteady:
            return self._seen.count >= OTHER_SHAPE_STEPS and self._seen.identical()
        return self._seen.steady()

    def _known(self, step: Step, threads: int, repeated: bool) -> Planned | None:
        found = self._shapes.fitting(step, threads)
        # If shapes alternate, the first steps after a plan was left can still have that plan's
        # shape. One such step is not enough to enter the plan again.
        returned = found is not None and found.shape == self._left
        return found if repeated or not returned or self._steps > OTHER_SHAPE_STEPS else None

    def _similar(self, threads: int) -> Planned | Sample | None:
        """One of the session's plans, if it fits at least SIMILAR_SHARE of the recorded steps, or a
        Sample for a new plan. None if there is no such plan and none can be made."""
        seen = self._seen
        similar = seen.most_similar(SIMILAR_SHARE)
        if similar is None:
            return None
        known = self._shapes.fitting_most(seen.sizes, similar.largest, threads, SIMILAR_SHARE)
        if known is not None:
            return known
        shape, sizes = Shape.of_similar(similar.largest, threads), similar.sizes
        before = self._shapes.find(shape)
        if before is not None:
            sizes = sizes.joined(sizes_of(before.plan.layout))
        if not sizes.possible:
            return None
        reason = f"{similar.steps} of {seen.count} steps differ only in the sizes of allocations"
        return Sample(shape, replace(similar, sizes=sizes.with_small_optional()), reason)
