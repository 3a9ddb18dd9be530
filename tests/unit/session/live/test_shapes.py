# SPDX-License-Identifier: Apache-2.0
"""Which plans a session keeps while it is attached, and which plans it drops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import SLOT_DTYPE
from sentineld.plan.slack import with_slack
from sentineld.profile.sizes import Sizes
from sentineld.session.live.divergence import EARNED_STEPS
from sentineld.session.live.shapes import (
    FOLLOWED_STEPS_MIN,
    SHAPES_MAX,
    STRIKES_MAX,
    Planned,
    Shape,
    Shapes,
    planned_sizes,
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
        # Leaving the plan after too few steps is a strike. Leaving it after enough steps resets the
        # number of strikes.
        shapes.left(shape, FOLLOWED_STEPS_MIN - 1)
        shapes.left(shape, FOLLOWED_STEPS_MIN)
    for _ in range(STRIKES_MAX):
        assert shapes.find(shape) is not None
        shapes.left(shape, 0)
    assert shapes.find(shape) is None


def test_a_plan_for_varying_sizes_fits_smaller_steps() -> None:
    small, large, larger = steps_of(SMALL, LARGE, replace(LARGE, activation_bytes=3 * MIB))
    shape = Shape.of_similar(small, 1)
    assert shape == Shape.of_similar(large, 1) != Shape.of(small, 1)
    sizes = Sizes.of(small).joined(Sizes.of(large))
    slots = np.zeros(len(sizes.most), SLOT_DTYPE)
    slots["bytes"] = sizes.most
    plan = toy_plan()
    layout = with_slack(replace(plan.layout, slots=slots), sizes.vary, sizes.optional)
    planned = Planned(shape, toy_profile(), toy_profile(), replace(plan, layout=layout), 0, 0.0)
    shapes = Shapes()
    shapes.keep(planned)
    assert planned_sizes(planned).cover(sizes)
    assert shapes.fitting(small, 1) is shapes.fitting(large, 1) is planned
    assert shapes.fitting(small, 2) is None
    assert shapes.fitting(larger, 1) is None
    own = replace(planned, shape=Shape.of(small, 1))
    shapes.keep(own)
    assert shapes.fitting(small, 1) is own


def test_a_plan_that_does_not_pay_off_asks_for_a_wider_one() -> None:
    shapes, shape = Shapes(), Shape(1, "")
    assert not shapes.unsteady
    shapes.left(shape, EARNED_STEPS - 1)
    assert shapes.unsteady
    shapes.left(shape, EARNED_STEPS)
    assert not shapes.unsteady
    shapes.left(replace(shape, sizes_vary=True), EARNED_STEPS)
    assert shapes.unsteady
