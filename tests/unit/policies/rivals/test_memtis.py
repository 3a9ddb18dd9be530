# SPDX-License-Identifier: Apache-2.0
"""Moves of memtis, checked by hand: four cells of ten pages."""

from __future__ import annotations

import numpy as np

from sentineld.plan.policy import MoveRequest
from sentineld.policies.rivals.memtis import Histogram, thresholds
from tests.unit.policies.rivals.observing import observation


def test_memtis_thresholds() -> None:
    level, pages = np.array([5, 3, 1]), np.array([50, 60, 100])
    # Hot pages must fit in 97 % (1 - SPARE) of the capacity of 120 pages: the 110 pages of bins 5
    # and 3 fit, all 210 pages do not. The 110 pages fill more than three quarters (WARM_BELOW) of
    # 120, so the next colder bin is not warm.
    assert thresholds(level, pages, 120) == (2, 2)
    # The 110 pages fill less than three quarters of 160, so the next colder bin is warm.
    assert thresholds(level, pages, 160) == (2, 1)
    assert thresholds(level, pages, 160, warm_below=0.0) == (2, 2)
    assert thresholds(level, pages, 40) == (6, 5)


def test_memtis_moves_across_the_threshold() -> None:
    histogram = Histogram(1.0)
    # The bin of a count is the binary logarithm of count + 1, rounded down: the counts 9, 3, 0, 0
    # are in the bins 3, 2, 0, 0. The 20 pages of cells 0 and 1 fit in 97 % of 21 pages and are hot.
    # Cell 0 is hot but slow, cell 2 is fast but cold.
    requested = histogram.tick(observation([9, 3, 0, 0], [0, 10, 10, 0], capacity=21, free=1))
    assert requested == [MoveRequest(2, 1, 9), MoveRequest(0, 0, 10)]


def test_memtis_cools_at_each_tick_if_asked() -> None:
    histogram = Histogram(1.0, cool_ticks=1)
    histogram.tick(observation([8, 0, 0, 0], [10, 0, 0, 0], capacity=11))
    histogram.tick(observation([0, 5, 0, 0], [10, 0, 0, 0], capacity=11))
    # Each tick first halves the counts. At the third tick, the counts of cells 0 and 1 are thus
    # 8 / 4 = 2 and 5 / 2 + 5 = 7.5, in bins 1 and 3. Without cooling, the counts would be 8 and 10,
    # in one bin, which has too many pages to be hot.
    last = histogram.tick(observation([0, 5, 0, 0], [10, 0, 0, 0], capacity=11, free=1))
    assert last == [MoveRequest(0, 1, 9), MoveRequest(1, 0, 10)]


def test_memtis_cools() -> None:
    histogram = Histogram(1.0)
    for _ in range(3):
        histogram.tick(observation([8, 0, 0, 0], [10, 0, 0, 0], capacity=11))
    # Counts are halved at ticks 4 and 8 (COOL_TICKS). Cell 0 has 24, then 12, then 6 accesses. Cell
    # 1 has 12 accesses before tick 8 and 12 / 2 + 3 = 9 after it. Without cooling, the counts 24
    # and 15 would be in one bin, which has too many pages to be hot.
    for _ in range(4):
        histogram.tick(observation([0, 3, 0, 0], [10, 0, 0, 0], capacity=11))
    last = histogram.tick(observation([0, 3, 0, 0], [10, 0, 0, 0], capacity=11, free=1))
    assert last == [MoveRequest(0, 1, 9), MoveRequest(1, 0, 10)]
