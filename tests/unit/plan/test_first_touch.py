# SPDX-License-Identifier: Apache-2.0
"""The plan that leaves all placement to the kernel."""

from __future__ import annotations

import numpy as np

from sentineld.model.plan import SLOT_DROP, SLOT_PLANNED
from sentineld.plan.check import verify
from sentineld.plan.first_touch import first_touch_plan
from sentineld.plan.predict import unpredicted
from tests.unit.plan.toys import PAGE, toy_profile


def test_nothing_has_a_tier_and_nothing_moves() -> None:
    plan = first_touch_plan(toy_profile(), 3 * PAGE)
    verify(plan, toy_profile(), None)
    assert {region.tier for region in plan.layout.regions} == {None}
    assert plan.layout.heap_tier is None
    assert not len(plan.moves)
    assert not len(plan.initial)
    assert (plan.layout.waits == -1).all()
    assert set(plan.initial_tier.tolist()) == {255}
    assert (plan.budget_bytes, plan.predicted) == (3 * PAGE, unpredicted())
    assert plan.reasons == ("where the kernel puts it at its first touch",) * 5


def test_short_lived_tensors_share_no_page_with_long_lived_ones() -> None:
    # Only the scratch is short-lived. Activation and gradient are alive together in stretch 2, so
    # they share no page.
    layout = first_touch_plan(toy_profile(), 0).layout
    pages = {region.name: region.bytes // PAGE for region in layout.regions}
    assert pages == {"short-lived": 1, "long-lived": 4}
    assert np.all(layout.slots["flags"] & (SLOT_PLANNED | SLOT_DROP) == SLOT_PLANNED)
    short = next(region for region in layout.regions if region.name == "short-lived")
    inside = (layout.slots["offset"] >= short.offset) & (
        layout.slots["offset"] < short.offset + short.bytes
    )
    assert inside.tolist() == [False, True, False]


def test_pages_can_be_dropped_at_the_death() -> None:
    kept, dropped = (first_touch_plan(toy_profile(), 0, drops).layout for drops in (False, True))
    verify(first_touch_plan(toy_profile(), 0, drops=True), toy_profile(), None)
    assert np.all(dropped.slots["flags"] == kept.slots["flags"] | SLOT_DROP)
    assert np.all(dropped.slots["offset"] == kept.slots["offset"])
