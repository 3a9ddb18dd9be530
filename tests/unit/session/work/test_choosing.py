# SPDX-License-Identifier: Apache-2.0
"""Which plan a session enters or makes after some recorded steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.profile.steps import Step, births, identical
from sentineld.session.live.divergence import EARNED_STEPS
from sentineld.session.live.shapes import Planned, Shape, Shapes
from sentineld.session.work.choosing import (
    OTHER_SHAPE_STEPS,
    SIZES_STEPS,
    Choosing,
    Sample,
)
from tests.unit.profile.test_sizes import steps_of
from tests.unit.session.live.test_shapes import wide_plan
from tests.unit.trainer import MIB, PAGE
from tests.unit.workloads import Network

NETWORK = Network(blocks=2, weights=1, activation_bytes=MIB)
THREADS = 1


def sized(*pages: int, network: Network = NETWORK) -> list[Step]:
    """For each number of pages, a steady step; an activation takes 1 MiB plus this many pages."""
    return steps_of(*(replace(network, activation_bytes=MIB + PAGE * n) for n in pages))


def varying(count: int) -> list[Step]:
    """Steps whose activations exceed 1 MiB by 0 to 15 pages, in mixed order."""
    return sized(*(7 * n % 16 for n in range(count)))


def choices(
    steps: list[Step], shapes: Shapes | None = None, left: Shape | None = None
) -> list[Planned | Sample | None]:
    """The choice after each step."""
    choosing = Choosing(shapes or Shapes(), left)
    found, before = [], None
    for step in steps:
        repeated = before is not None and identical(before, step)
        found.append(choosing.add(step, THREADS, repeated))
        before = step
    return found


def only_last(found: list[Planned | Sample | None]) -> Planned | Sample:
    """The choice after the last step. There must be no choice after an earlier step."""
    *others, last = found
    assert not any(others)
    assert last is not None
    return last


def kept(planned: Planned, followed_steps: int) -> Shapes:
    """A Shapes object with one plan, which is no longer live. followed_steps: number of steps that
    fitted the plan while it was live."""
    shapes = Shapes()
    shapes.keep(planned)
    shapes.left(planned.shape, followed_steps)
    return shapes


def test_two_identical_steps_are_enough_at_the_beginning() -> None:
    choice = only_last(choices(sized(5, 5)))
    assert isinstance(choice, Sample)
    assert choice.similar is None
    assert choice.shape == Shape.of(sized(5)[0], THREADS)


def test_a_warm_up_of_other_sizes_delays_the_choice() -> None:
    choosing = Choosing(Shapes(), None)
    for step in sized(1, 2):
        choosing.warm_up(step)
    steps = sized(5, 5, 5)
    found = [choosing.add(step, THREADS, at > 0) for at, step in enumerate(steps)]
    assert isinstance(only_last(found), Sample)


@pytest.mark.parametrize("before", [(1,), (1, 2), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_steps_of_other_sizes_at_the_beginning_delay_the_choice_little(
    before: tuple[int, ...],
) -> None:
    choice = only_last(choices(sized(*before, 5, 5, 5)))
    assert isinstance(choice, Sample)
    assert choice.similar is None


def test_sizes_that_vary_get_a_plan_that_fits_the_largest() -> None:
    steps = varying(SIZES_STEPS)
    choice = only_last(choices(steps))
    assert isinstance(choice, Sample)
    assert choice.shape == Shape.of_similar(steps[0], THREADS)
    assert choice.similar is not None
    (largest,) = sized(15)
    assert choice.similar.sizes.largest_bytes.tolist() == births(largest).tolist()
    assert identical(choice.similar.largest, largest)
    assert all(choice.similar.sizes.accept(births(step).tolist()) for step in steps)


@pytest.mark.parametrize("before", range(1, SIZES_STEPS - 1))
def test_a_single_change_of_the_sizes_begins_a_phase(before: int) -> None:
    shapes = Shapes()
    shapes.unsteady = True
    steps = sized(*[1] * before, *[5] * (SIZES_STEPS - before))
    choosing = Choosing(shapes, None)
    for step in steps[:-1]:
        choosing.warm_up(step)
    choice = choosing.add(steps[-1], THREADS, repeated=True)
    assert isinstance(choice, Sample)
    assert choice.similar is None
    assert choice.shape == Shape.of(steps[-1], THREADS)


def test_steps_of_several_structures_are_never_chosen_without_a_repetition() -> None:
    deeper = replace(NETWORK, blocks=3)
    steps = [sized(n % 16, network=deeper if n % 2 else NETWORK)[0] for n in range(3 * SIZES_STEPS)]
    assert not any(choices(steps))


def test_after_a_plan_that_did_not_pay_off_two_identical_steps_are_not_enough() -> None:
    (own,) = sized(5)
    exact = replace(wide_plan(own), shape=Shape.of(own, THREADS))
    shapes = kept(exact, EARNED_STEPS - 1)
    steps = [*sized(5, 5, 5), *varying(SIZES_STEPS - 3)]
    choice = only_last(choices(steps, shapes, exact.shape))
    assert isinstance(choice, Sample)
    assert choice.similar is not None


def test_but_many_identical_steps_are() -> None:
    wide = wide_plan(*sized(0, 15))
    shapes = kept(wide, EARNED_STEPS - 1)
    steps = sized(*[30] * OTHER_SHAPE_STEPS)
    choice = only_last(choices(steps, shapes, wide.shape))
    assert isinstance(choice, Sample)
    assert choice.similar is None


def test_a_plan_for_varying_sizes_is_entered_again() -> None:
    wide = wide_plan(*sized(0, 15))
    assert only_last(choices(varying(SIZES_STEPS), kept(wide, 0), wide.shape)) is wide
    assert only_last(choices(sized(3), kept(wide, EARNED_STEPS))) is wide


def test_the_next_plan_fits_the_sizes_of_the_former_one_too() -> None:
    wide = wide_plan(*sized(0, 15))
    steps = sized(*(20 + 7 * n % 16 for n in range(SIZES_STEPS)))
    choice = only_last(choices(steps, kept(wide, 0), wide.shape))
    assert isinstance(choice, Sample)
    assert choice.similar is not None
    for step in [*steps, *sized(0, 7, 15)]:
        assert choice.similar.sizes.accept(births(step).tolist())


def test_a_plan_that_fits_few_of_the_steps_is_not_entered_again() -> None:
    wide = wide_plan(*sized(0, 1))
    choice = only_last(choices(varying(SIZES_STEPS), kept(wide, 0), wide.shape))
    assert isinstance(choice, Sample)
