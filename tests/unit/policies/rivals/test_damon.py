# SPDX-License-Identifier: Apache-2.0
"""Moves of DAMON's schemes, checked by hand: four cells of ten pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.rivals.damon import PAGE_BYTES, Schemes, hotness
from tests.unit.policies.rivals.observing import observation


def seen(now_s: float, accesses: list[float], free: int = 0, capacity: int = 1000) -> Observation:
    """Cells 1 and 2 are fast."""
    return observation(accesses, [0, 10, 10, 0], free=free, capacity=capacity, now_ns=now_s * 1e9)


def test_hotness_is_the_mean_of_frequency_and_age() -> None:
    # The frequency is the share of the 20 samples with an access, in %: 0, 0, 50 and 100. The
    # logarithm of an age is the number of binary digits of its whole seconds, negated for a region
    # without accesses: 0, -3, 0 and 4. The age's score is (logarithm + 32) x 100 / 64: 50, 45, 50
    # and 56.
    samples, ages = np.array([0, 0, 10, 20]), np.array([0.0, 5.0, 0.9, 8.0])
    assert hotness(samples, ages).tolist() == [25, 22, 50, 78]


def test_accessed_slow_regions_rise_and_idle_fast_regions_fall() -> None:
    # Demotions aim at 5 free pages of 1000 (0.5 %, the first of SETTINGS). Promotions leave 3 pages
    # free: 1000 x (1 - USED_GOAL) = 1000 x (1 - 0.997). So 5 pages are demoted and 2 are promoted.
    # Cell 2 is demoted, because it is the only fast cell without accesses. Cell 3 is promoted,
    # because it has more accesses than cell 0.
    schemes = Schemes(1.0)
    assert schemes.tick(seen(0.0, [1, 3, 0, 9])) == [MoveRequest(2, 1, 5), MoveRequest(3, 0, 2)]
    # If 5 pages are free, nothing is demoted.
    assert schemes.tick(seen(1.0, [1, 3, 0, 9], free=5)) == [MoveRequest(3, 0, 2)]


def test_the_region_that_is_idle_the_longest_falls_first() -> None:
    schemes = Schemes(1.0, free_goal=0.012)
    schemes.tick(seen(0.0, [0, 1, 0, 0], free=12))
    schemes.tick(seen(4.0, [0, 0, 0, 0], free=12))
    # An idle region's age counts from the first tick that found it idle: for cell 2, the tick at
    # 0 s; for cell 1, which the tick at 0 s found accessed, the tick at 4 s. So at 8 s, the ages
    # are 8 s and 4 s.
    assert schemes.tick(seen(8.0, [0, 0, 0, 0])) == [MoveRequest(2, 1, 10), MoveRequest(1, 1, 2)]


def test_a_region_that_is_accessed_steadily_is_hotter_than_a_new_one() -> None:
    schemes = Schemes(1.0)
    schemes.tick(seen(0.0, [0, 0, 0, 5]))
    # Cells 0 and 3 now have the same number of accesses, but 8 s ago, only cell 3 had accesses.
    assert schemes.tick(seen(8.0, [5, 0, 0, 5], free=8)) == [MoveRequest(3, 0, 5)]


def test_the_quota_limits_both_directions() -> None:
    # The quota is 2 pages a second. The goal is 5 % free memory, which is 50 pages.
    schemes = Schemes(1.0, 0.05, 2.0 * PAGE_BYTES)
    hot = [9.0, 1.0, 0.0, 0.0]
    assert schemes.tick(seen(0.0, hot)) == [MoveRequest(2, 1, 2)]
    assert schemes.tick(seen(0.5, hot, free=40)) == [MoveRequest(2, 1, 1), MoveRequest(0, 0, 2)]
    unlimited = Schemes(1.0, 0.05, None)
    assert unlimited.tick(seen(0.0, hot)) == [MoveRequest(2, 1, 10), MoveRequest(0, 0, 7)]


def test_only_pages_that_are_moved_are_charged_to_the_quota() -> None:
    # The goal is 50 free pages, but at first, all fast pages are accessed. The quota of the first
    # second, 2 pages, remains for cell 2, which is idle at 0.5 s.
    schemes = Schemes(1.0, 0.05, 2.0 * PAGE_BYTES)
    assert schemes.tick(seen(0.0, [9, 1, 1, 0])) == []
    assert schemes.tick(seen(0.5, [9, 1, 0, 0])) == [MoveRequest(2, 1, 2)]
    # At most half of the pages that can be moved are demoted: one page at 1.5 s.
    few = replace(seen(1.5, [9, 1, 0, 0]), move_pages=2)
    assert schemes.tick(few) == [MoveRequest(2, 1, 1)]
    assert schemes.tick(seen(1.5, [9, 1, 0, 0])) == [MoveRequest(2, 1, 1)]
