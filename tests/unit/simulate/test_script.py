# SPDX-License-Identifier: Apache-2.0
"""Events, costs and moves of the large toy's handmade plan; see toy_profile() and toy_plan()."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sentineld.model.plan import SLOT_DROP
from sentineld.model.timing import timing_of
from sentineld.simulate.script import Birth, Drop, Script, Scripts, scripts
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, two_tiers

SCRATCH_CELL, ACTIVATION_CELL, GRADIENT_CELL, MOVING_CELL, RESTING_CELL, PARAMETER_CELL = range(6)
SLOW_PAGE_NS = (0.125 + 0.375 / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written. With the bandwidths of
two_tiers(), a slow byte takes 1/4 - 1/8 = 0.125 ns more to read and 1/2 - 1/8 = 0.375 ns more to
write."""


def made() -> Scripts:
    tiers = replace(two_tiers(), birth_ns_per_byte=0.5)
    return scripts(large_plan(), large_profile(), timing_of(tiers))


def events(script: Script) -> list[list[tuple[str, float, int]]]:
    """By stretch: kind of event, share of the stretch that has passed, cell."""
    return [
        [(type(event).__name__, event.at, event.low) for event in stretch]
        for stretch in script.events
    ]


def test_all_tensors_are_born_in_the_first_step() -> None:
    # The births are events 1, 2 and 4 of 6; the stretches begin at events 0, 4, 4 and 6.
    assert events(made().first) == [
        [("Birth", 0.25, ACTIVATION_CELL), ("Birth", 0.5, SCRATCH_CELL)],
        [],
        [("Birth", 0.0, GRADIENT_CELL), ("Drop", 0.5, ACTIVATION_CELL)],
        [],
    ]


def test_only_dropped_pages_are_born_again() -> None:
    assert events(made().steady) == [
        [("Birth", 0.25, ACTIVATION_CELL)],
        [],
        [("Drop", 0.5, ACTIVATION_CELL)],
        [],
    ]


def test_pages_are_dropped_before_a_later_birth_of_the_stretch() -> None:
    # The gradient dies at event 0 of the next step, before the births of stretch 0.
    plan = large_plan()
    plan.layout.slots["flags"][2] |= SLOT_DROP
    one = scripts(plan, large_profile(), timing_of(two_tiers()))
    assert events(one.steady)[0] == [
        ("Drop", 0.0, GRADIENT_CELL),
        ("Birth", 0.25, ACTIVATION_CELL),
    ]


def test_accesses_at_birth_cost_by_the_tier_of_birth() -> None:
    both = made()
    for script, born in (
        (both.first, {ACTIVATION_CELL, SCRATCH_CELL, GRADIENT_CELL}),
        (both.steady, {ACTIVATION_CELL}),
    ):
        births = [event for stretch in script.events for event in stretch if type(event) is Birth]
        assert {birth.low for birth in births} == born
        assert [birth.cost_ns for birth in births] == pytest.approx(
            [SLOW_PAGE_NS] * len(births), rel=0.03
        )
        # Accesses whose cost is part of a birth's cost are not counted a second time.
        at_begin = [script.costs_ns[0, ACTIVATION_CELL], script.costs_ns[2, GRADIENT_CELL]]
        assert [cost > 0 for cost in at_begin] == [False, GRADIENT_CELL not in born]
        assert script.costs_ns[2, ACTIVATION_CELL] == pytest.approx(SLOW_PAGE_NS)
        assert script.costs_ns[3, [MOVING_CELL, RESTING_CELL]] == pytest.approx(SLOW_PAGE_NS)


def test_moves_begin_once_their_pages_are_unused() -> None:
    # The state is used in stretch 3 only, so its demotion at boundary 0 cannot begin earlier.
    # Promotions, such as the one at boundary 2, never begin ahead of time.
    found = [
        [(move.low, move.high, move.tier, move.times.ahead) for move in stretch]
        for stretch in made().moves
    ]
    moving = (MOVING_CELL, MOVING_CELL + 1)
    assert found == [[(*moving, 1, 0)], [], [(*moving, 0, 0)], []]


def test_tiers_that_the_plan_assumes() -> None:
    one = made()
    assert one.initial == ((MOVING_CELL, 4, 0), (RESTING_CELL, 5, 1), (PARAMETER_CELL, 6, 0))
    # The pages of the pool, of the gradient, of the parameter and of the half of the state in
    # RESTING_CELL never move.
    settled = {cell: tier for low, high, tier in one.settled for cell in range(low, high)}
    assert settled == {SCRATCH_CELL: 0, GRADIENT_CELL: 1, RESTING_CELL: 1, PARAMETER_CELL: 0}


def test_times_and_waits_are_the_plan_s() -> None:
    one = made()
    assert one.times_ns.tolist() == [1e9] * 4
    assert one.waits == (-1, -1, -1, -1)
    assert one.birth_ns == 0.5 * PAGE
    assert one.stalls == ()
    assert one.cells.pages.tolist() == [63, *[2 * LARGE] * 5]


def test_the_death_of_a_persistent_tensor_drops_nothing() -> None:
    # A persistent tensor lies in the heap, even if a step allocates it.
    profile = large_profile()
    profile.tensors["kind"][0] = 3
    one = scripts(large_plan(), profile, timing_of(two_tiers()))
    kinds = {type(event) for stretch in one.first.events for event in stretch}
    assert Drop not in kinds
    assert np.isfinite(one.first.costs_ns).all()
