# SPDX-License-Identifier: Apache-2.0
"""The times that stretches would take with all memory fast, derived from steps measured under a
plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.plan.timed import all_fast_ns, births_ns, planned_extra_ns, spent_ns
from sentineld.profile.lifetimes import allocation_profile
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, two_tiers, with_layout
from tests.unit.profile.toys import toy

SLOW_PAGE_NS = (0.125 + 0.375 / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written: 1/4 - 1/8 = 0.125 for
each byte read, 1/2 - 1/8 = 0.375 for each byte written."""


def test_slow_accesses_by_hand() -> None:
    # Slow memory serves the gradient in stretches 2 and 3. In stretch 3 it also serves the half of
    # the state that never moves.
    extra = planned_extra_ns(large_plan(), large_profile(), two_tiers())
    assert extra == pytest.approx([0, 0, 2 * LARGE * SLOW_PAGE_NS, 4 * LARGE * SLOW_PAGE_NS])


def test_births_of_dropped_pages_by_hand() -> None:
    # Only the pages of the activation are dropped; the activation is born in stretch 0.
    plan, profile = large_plan(), large_profile()
    assert births_ns(plan, profile, two_tiers()).tolist() == [0, 0, 0, 0]
    costly = replace(two_tiers(), birth_ns_per_byte=0.5)
    assert births_ns(plan, profile, costly) == pytest.approx([2 * LARGE * PAGE * 0.5, 0, 0, 0])


def test_the_times_of_a_step_with_the_same_boundaries() -> None:
    step = toy()
    profile = allocation_profile(step, ["", "a"])
    spent = spent_ns(profile, toy(steps=4))
    assert spent is not None
    assert spent.tolist() == profile.stretches["time_ns"].tolist()
    assert spent_ns(profile, toy(cuts=(1,))) is None


def test_waits_are_not_part_of_the_derived_times() -> None:
    plan = with_layout(large_plan(), waits=np.array([-1, 0, -1, -1], np.int32))
    spent = np.array([[3e9, 5e9, 2e9, 1.0]])
    found = all_fast_ns(plan, large_profile(), spent, np.array([1e9, 0.0, 0.5e9, 1e9]))
    # Boundary 1 has a wait, so stretch 1 keeps its profiled time of 1 s. No time is negative.
    assert found.tolist() == [[2e9, 1e9, 1.5e9, 0.0]]


@given(st.lists(st.floats(0.1, 10.0), min_size=4, max_size=4))
def test_steps_at_any_pace_give_their_all_fast_times_back(paces: list[float]) -> None:
    plan, profile, tiers = large_plan(), large_profile(), two_tiers()
    times = profile.stretches["time_ns"] * np.array(paces)
    extra = planned_extra_ns(plan, profile, tiers)
    found = all_fast_ns(plan, profile, np.array([times + extra] * 3), extra)
    assert found == pytest.approx(np.array([times] * 3))
