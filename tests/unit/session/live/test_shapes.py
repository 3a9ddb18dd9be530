# SPDX-License-Identifier: Apache-2.0
"""Which plans a session keeps while it is attached, and which plans it drops."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from sentineld.model.plan import SLOT_DTYPE
from sentineld.model.profile import STRETCH_DTYPE
from sentineld.plan.slack import with_slack
from sentineld.profile.sizes import Sizes
from sentineld.profile.steps import Step, births, boundary_count
from sentineld.session.live.divergence import EARNED_STEPS
from sentineld.session.live.shapes import (
    FOLLOWED_STEPS_MIN,
    SHAPES_MAX,
    STRIKES_MAX,
    Planned,
    Shape,
    Shapes,
)
from tests.unit.plan.toys import toy_plan, toy_profile
from tests.unit.profile.test_sizes import LARGE, SMALL, steps_of
from tests.unit.trainer import MIB


def test_the_plans_used_last_are_kept() -> None:
    shapes = Shapes()
    for number in range(SHAPES_MAX):
        shapes.keep(
            Planned(Shape(1, str(number)), toy_profile(), toy_profile(), toy_plan(), 0, 0.0)
        )
    assert shapes.find(Shape(1, "0")) is not None
    shapes.keep(Planned(Shape(2, "0"), toy_profile(), toy_profile(), toy_plan(), 0, 0.0))
    assert len(shapes) == SHAPES_MAX
    assert shapes.find(Shape(1, "0")) is not None
    assert shapes.find(Shape(1, "1")) is None
    shapes.forget(Shape(1, "0"))
    assert shapes.find(Shape(1, "0")) is None


def test_a_plan_that_repeatedly_fits_no_step_is_forgotten() -> None:
    shapes, shape = Shapes(), Shape(1, "")
    shapes.keep(Planned(shape, toy_profile(), toy_profile(), toy_plan(), 0, 0.0))
    for _ in range(STRIKES_MAX):
        # A plan is dropped if it is left STRIKES_MAX times in a row after too few steps. Here, it
        # is left after too few steps and then after enough steps, which resets the count each time.
        shapes.left(shape, FOLLOWED_STEPS_MIN - 1)
        shapes.left(shape, FOLLOWED_STEPS_MIN)
    for _ in range(STRIKES_MAX):
        assert shapes.find(shape) is not None
        shapes.left(shape, 0)
    assert shapes.find(shape) is None


def wide_plan(*steps: Step) -> Planned:
    """A plan for varying sizes that fits these steps, which have one structure."""
    sizes = reduce(Sizes.joined, map(Sizes.of, steps))
    plan, (step, *_) = toy_plan(), steps
    slots = np.zeros(len(sizes.vary), SLOT_DTYPE)
    layout = with_slack(replace(plan.layout, slots=slots), sizes)
    profile = replace(toy_profile(), stretches=np.zeros(boundary_count(step), STRETCH_DTYPE))
    shape = Shape.of_similar(step, 1)
    return Planned(shape, profile, profile, replace(plan, layout=layout), 0, 0.0)


def test_a_plan_for_varying_sizes_fits_smaller_steps() -> None:
    small, large, larger = steps_of(SMALL, LARGE, replace(LARGE, activation_bytes=3 * MIB))
    planned, shapes = wide_plan(small, large), Shapes()
    assert planned.shape == Shape.of_similar(larger, 1) != Shape.of(small, 1)
    shapes.keep(planned)
    assert shapes.fitting(small, 1) is shapes.fitting(large, 1) is planned
    assert shapes.fitting(small, 2) is None
    assert shapes.fitting(larger, 1) is None
    own = replace(planned, shape=Shape.of(small, 1))
    shapes.keep(own)
    assert shapes.fitting(small, 1) is own


def test_a_plan_does_not_fit_steps_with_other_boundaries() -> None:
    (small, large), shapes = steps_of(SMALL, LARGE), Shapes()
    planned = wide_plan(small, large)
    stretches = planned.profile.stretches[1:]
    shapes.keep(replace(planned, profile=replace(planned.profile, stretches=stretches)))
    assert shapes.fitting(small, 1) is None


def test_the_plan_that_fits_most_steps() -> None:
    small, large, larger = steps_of(SMALL, LARGE, replace(LARGE, activation_bytes=3 * MIB))
    planned, shapes = wide_plan(small, large), Shapes()
    shapes.keep(planned)
    sizes = [births(one) for one in (small, large, larger)]
    assert shapes.fitting_most(sizes, small, 1, 0.6) is planned
    assert shapes.fitting_most(sizes, small, 1, 0.7) is None
    assert shapes.fitting_most(sizes, small, 2, 0.6) is None


def test_a_plan_that_does_not_pay_off_asks_for_a_wider_one() -> None:
    shapes, shape = Shapes(), Shape(1, "")
    assert not shapes.unsteady
    shapes.left(shape, EARNED_STEPS - 1)
    assert shapes.unsteady
    shapes.left(shape, EARNED_STEPS)
    assert not shapes.unsteady
