# SPDX-License-Identifier: Apache-2.0
"""Policy `sentinel+spill` where it differs from `sentinel`; test_policy.py tests both."""

from __future__ import annotations

import pytest

from sentineld.plan.check import verify
from sentineld.policies.registry import policy
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers
from tests.unit.policies.network import RATE, step_bound, step_plan, training_step


def test_of_a_toy_that_does_not_fit_the_costliest_tensors_are_fast() -> None:
    # The pool holds the scratch and takes 1 of the 8 pages in all stretches. The other fast pages:
    # stretch      0     1     2     3
    # activation   2     2     2           born fast, used in 0 and 2
    # gradient     2           2     2     born fast in 2, dies in 0; used in 2 and 3
    # parameter    2     2     2     2     used in 1, 2 and 3
    # The scratch and these pages serve 1 + 4 + 4 + 6 = 15 of 19 page accesses. The state's 4 pages
    # would have to be promoted in stretch 2 for their use in stretch 3, but stretch 2 has no room
    # for them.
    plan = policy("sentinel+spill").plan(toy_profile(), two_tiers(), 8 * PAGE)
    verify(plan, toy_profile(), 8 * PAGE)
    assert plan.predicted.fast_share == pytest.approx(15 / 19)
    assert plan.predicted.peak_fast_bytes == 7 * PAGE
    assert plan.initial_tier.tolist() == [255, 255, 255, 1, 0]


def test_a_fifth_of_the_peak_serves_nine_accesses_in_ten() -> None:
    plan, first_touch = step_plan("sentinel+spill"), step_plan("first-touch")
    assert plan.predicted.fast_share >= 0.9
    assert first_touch.predicted.fast_share < 0.6
    assert step_bound().fixed_share < 0.9


def test_it_serves_more_than_the_published_schedule_if_moves_are_slow() -> None:
    published, ours = (
        step_plan(name, rate=RATE / 8).predicted.fast_share
        for name in ("sentinel", "sentinel+spill")
    )
    assert ours > published + 0.05


def test_tensors_that_exceed_the_pool_spill() -> None:
    training = training_step()
    peak = training.peak_bytes
    for budget in (PAGE, 64 * PAGE, peak // 40, peak // 20):
        plan = policy("sentinel+spill").plan(training, two_tiers(RATE), budget)
        verify(plan, training, budget)
        assert plan.policy == "sentinel+spill"
        assert plan.predicted.peak_fast_bytes <= budget
    static = policy("static").plan(training, two_tiers(RATE), peak // 20)
    assert plan.predicted.fast_share > static.predicted.fast_share - 0.05
