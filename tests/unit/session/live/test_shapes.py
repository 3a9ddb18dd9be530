# SPDX-License-Identifier: Apache-2.0
"""Which plans a session keeps while it is attached, and which plans it drops."""

from __future__ import annotations

from sentineld.session.live.shapes import (
    FOLLOWED_STEPS_MIN,
    SHAPES_MAX,
    STRIKES_MAX,
    Planned,
    Shape,
    Shapes,
)
from tests.unit.plan.toys import toy_plan, toy_profile


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
