# SPDX-License-Identifier: Apache-2.0
"""The first and the last stage of making a plan: the draft and its completion."""

from __future__ import annotations

from dataclasses import replace

from sentineld.plan.draft import draft, finished
from sentineld.plan.predict import initial_tiers, predicted, unpredicted
from sentineld.plan.reasons import reasons
from tests.unit.plan.toys import PAGE, toy_plan, toy_profile, two_tiers


def test_a_draft_is_a_layout_without_moves() -> None:
    layout = toy_plan().layout
    plan = draft("mine", toy_profile(), 7 * PAGE, layout, ("a note",))
    assert (plan.policy, plan.budget_bytes, plan.notes) == ("mine", 7 * PAGE, ("a note",))
    assert plan.layout is layout
    assert not len(plan.moves)
    assert not len(plan.initial)
    assert plan.initial_tier.tolist() == [255] * 5
    assert plan.predicted == unpredicted()


def test_a_finished_plan_has_what_follows_from_its_moves() -> None:
    profile, tiers = toy_profile(), two_tiers()
    plan = draft("mine", profile, 7 * PAGE, toy_plan().layout)
    plan = replace(plan, moves=toy_plan().moves, initial=toy_plan().initial)
    found = finished(plan, profile, tiers)
    assert found.initial_tier.tolist() == initial_tiers(plan, profile).tolist()
    assert found.initial_tier.tolist()[3:] == [0, 0]
    assert found.predicted == predicted(toy_plan(), profile, tiers)
    assert found.reasons == reasons(toy_plan(), profile)
    assert found.layout is plan.layout
