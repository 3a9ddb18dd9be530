# SPDX-License-Identifier: Apache-2.0
"""The parts of budget and bandwidth that plans use."""

from __future__ import annotations

import pytest

from sentineld.policies.shares import MOVE_SHARE, usable_moves, usable_pages
from tests.unit.plan.toys import PAGE, toy_profile, two_tiers


@pytest.mark.parametrize(
    ("budget_bytes", "pages"), [(4095, 0), (4096, 1), (499 * 4096, 499), (1000 * 4096 + 1, 998)]
)
def test_a_small_share_of_the_whole_pages_stays_free(budget_bytes: int, pages: int) -> None:
    assert usable_pages(budget_bytes, 4096) == pages


def test_nearly_all_of_a_stretch_s_time_is_for_moves() -> None:
    moves = usable_moves(toy_profile(), two_tiers(8 * PAGE))  # stretches of one second
    assert moves == pytest.approx([8 * MOVE_SHARE] * 4)
