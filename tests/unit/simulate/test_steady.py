# SPDX-License-Identifier: Apache-2.0
"""The time of a steady step, including waits and late moves, which predictions leave out."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.plan.predict import predicted
from sentineld.simulate.steady import steady_step_ns
from tests.unit.plan.toys import LARGE, PAGE, large_plan, large_profile, with_layout
from tests.unit.policies.tiering import tiers

PAGE_NS = (0.375 + 0.75 / 2) * PAGE
"""Extra ns when a slow page is read completely and half of it is written, as in the toy."""
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
    # Promoting the moving half takes 1.5 s, but only one second is left before its use.
    profile, slow = large_profile(), tiers(STATE / 1.5)
    late = steady_step_ns(large_plan(), profile, slow)
    assert late > predicted(large_plan(), profile, slow).step_ns + 40 * PAGE_NS
    waits = np.array([-1, 0, -1, -1], np.int32)
    assert steady_step_ns(with_layout(large_plan(), waits=waits), profile, slow) > late
