# SPDX-License-Identifier: Apache-2.0
"""Plans made from a pool and the lives of chunks."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.plan.check import verify
from sentineld.plan.lives import Lives
from sentineld.plan.stall_trial import stall_boundaries
from sentineld.policies.sentinel.assemble import Placement, assemble, chunks_of
from sentineld.policies.sentinel.pool import whole_pool
from tests.unit.plan.toys import PAGE, large_profile, toy_profile, two_tiers


def test_large_tensors_are_cut_into_chunks() -> None:
    items = chunks_of(large_profile(), np.array([0, 2, 3, 4]))
    assert items.pages.max() == 16
    assert items.pages.sum() == 640


def test_a_plan_carries_out_the_lives() -> None:
    # One letter for each stretch, beginning with the stretch of the birth. F: fast, s: slow, D:
    # being demoted, U: being promoted. Dots fill up the words of tensors with shorter lives; the
    # test reads a dot, like s, as slow.
    words = {
        "activation": "FFF.",
        "gradient": "ss..",  # born slow in stretch 2, dies in stretch 0
        "state": "DsUF",
        "parameter": "FFFF",
    }
    letters = np.array([list(word) for word in words.values()]).T
    profile = toy_profile()
    split = whole_pool(profile, 12)
    items = chunks_of(profile, split.candidates)
    lives = Lives(np.zeros(4), np.isin(letters, ["F", "D"]), np.isin(letters, ["U", "D"]))
    placed = Placement(split, items, lives, 12, np.zeros_like(lives.moving))
    plan = assemble("some policy", profile, two_tiers(), 12 * PAGE, placed, ("a note",))
    verify(plan, profile, 12 * PAGE)
    assert (plan.policy, plan.notes) == ("some policy", ("a note",))
    moves = plan.moves[["boundary", "deadline", "tier", "offset", "bytes"]].tolist()
    assert moves == [(0, 1, 1, 0, 4 * PAGE), (2, 3, 0, 0, 4 * PAGE)]
    # State and parameter lie side by side in the heap and begin the step on the same tier.
    assert plan.initial[["tier", "offset", "bytes"]].tolist() == [(0, 0, 6 * PAGE)]
    assert [(one.name, one.tier, one.bytes) for one in plan.layout.regions] == [
        ("pool", 0, PAGE),
        ("fast-born", 0, 2 * PAGE),
        ("slow-born", 1, 2 * PAGE),
    ]


@pytest.mark.parametrize(
    ("parameter", "boundary", "deadline"),
    [
        # L: being promoted, late by plan
        ("DLFF", 1, 2),
        ("FFDL", 3, 0),  # the promotion's deadline is in the next step
    ],
)
def test_late_promotions_may_be_waited_for_but_are_not_predicted_to_arrive(
    parameter: str, boundary: int, deadline: int
) -> None:
    letters = np.array([list(word) for word in ("FFF.", "ss..", "ssss", parameter)]).T
    profile = toy_profile()
    split = whole_pool(profile, 12)
    items = chunks_of(profile, split.candidates)
    fast, late = np.isin(letters, ["F", "D"]), letters == "L"
    lives = Lives(np.zeros(4), fast, np.isin(letters, ["D", "L"]))
    placed = Placement(split, items, lives, 12, late)
    plan = assemble("some policy", profile, two_tiers(), 12 * PAGE, placed, ())
    verify(plan, profile, 12 * PAGE)
    assert stall_boundaries(plan).tolist() == [deadline]
    assert plan.moves["boundary"][plan.late].tolist() == [boundary]
    assert plan.layout.waits[deadline] == boundary
    # The predictions equal those of a plan in which the parameter is never promoted and is slow in
    # all stretches.
    fast[:, 3] = False
    never = Lives(np.zeros(4), fast, np.zeros_like(late))
    placed = Placement(split, items, never, 12, np.zeros_like(late))
    found = assemble("some policy", profile, two_tiers(), 12 * PAGE, placed, ()).predicted
    assert plan.predicted.step_ns == found.step_ns
    assert plan.predicted.fast_share == found.fast_share


def test_the_note_on_the_pool_gives_its_size() -> None:
    profile = toy_profile()
    split = whole_pool(profile, 12)
    items = chunks_of(profile, split.candidates)
    never = np.zeros(items.worth.shape, np.bool_)
    placed = Placement(split, items, Lives(np.zeros(4), never, never), 12, never)
    expected = "pool of 4.0 KiB for 1 short-lived tensors; 44.0 KiB for other tensors"
    assert placed.pool_note(profile) == expected
