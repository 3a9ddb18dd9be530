# SPDX-License-Identifier: Apache-2.0
"""The time of a steady step, including waits and late moves, which predictions do not include."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.plan.predict import predicted
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from sentineld.simulate.steady import steady_step_ns
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, with_layout
from tests.unit.policies.rivals.laps import Life, lap
from tests.unit.policies.tiering import paged_tiers, tiers

PAGE_NS = (0.375 + 0.75 / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written, as in large_profile().
With the bandwidths of tiers(), a slow byte takes 1/2 - 1/8 = 0.375 ns more to read and 1 - 1/4 =
0.75 ns more to write."""
STATE = 2 * LARGE
"""Pages of the half of the state that the plan moves."""


def test_with_moves_in_time_it_is_the_predicted_step() -> None:
    # Slow memory serves the gradient in stretches 2 and 3, and in stretch 3 also the half of the
    # state that never moves.
    profile, fast = large_profile(), tiers(1000.0)
    found = steady_step_ns(large_plan(), profile, fast)
    assert found == pytest.approx(4e9 + 6 * LARGE * PAGE_NS, abs=2)
    assert found == pytest.approx(predicted(large_plan(), profile, fast).step_ns, abs=2)


def test_late_moves_make_it_longer_than_predicted() -> None:
    # A promotion of the moving half of the state takes 1.5 s, but only one second is left before
    # its use.
    profile, slow = large_profile(), tiers(STATE / 1.5)
    late = steady_step_ns(large_plan(), profile, slow)
    assert late > predicted(large_plan(), profile, slow).step_ns + 40 * PAGE_NS
    waits = np.array([-1, 0, -1, -1], np.int32)
    assert steady_step_ns(with_layout(large_plan(), waits=waits), profile, slow) > late


def test_the_steady_step_begins_from_the_plans_initial_tiers() -> None:
    # One of eight stretches uses 2,000 pages, and all eight use 1,000 other pages. Memory has room
    # for 1,100 of the 3,000 pages. The disk moves 20 pages/s, so if the pages began on the wrong
    # tiers, their moves would not be finished even after several steps.
    profile = lap(8, Life(2000, (0,)), Life(1000, tuple(range(8))))
    slow = paged_tiers(20.0, 20.0)
    plan = policy("auto").plan(profile, slow, 1100 * PAGE)
    found = simulate(profile, policy("auto"), slow, 1100 * PAGE, plan=plan)
    assert steady_step_ns(plan, profile, slow) / 1e9 == pytest.approx(found.step_seconds)
