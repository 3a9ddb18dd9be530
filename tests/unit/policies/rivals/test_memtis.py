# SPDX-License-Identifier: Apache-2.0
"""Moves of memtis, checked by hand: four cells of ten pages."""

from __future__ import annotations

import numpy as np

from sentineld.plan.policy import MoveRequest
from sentineld.policies.rivals.memtis import Histogram, thresholds
from tests.unit.policies.rivals.observing import observation


def test_memtis_thresholds() -> None:
    level, pages = np.array([5, 3, 1]), np.array([50, 60, 100])
    # 110 pages fit into 120 less 3 %, 210 do not; they fill three quarters.
    assert thresholds(level, pages, 120) == (2, 2)
    # Of 160 they do not: the next bin is warm.
    assert thresholds(level, pages, 160) == (2, 1)
    assert thresholds(level, pages, 40) == (6, 5)


def test_memtis_moves_across_the_threshold() -> None:
    histogram = Histogram(1.0)
    # Counts 9, 3, 0, 0: bins 3, 2, 0, 0; 20 pages of 21 are hot: cell 0 is slow, cell 2 cold.
    requested = histogram.tick(observation([9, 3, 0, 0], [0, 10, 10, 0], capacity=21, free=1))
    assert requested == [MoveRequest(2, 1, 9), MoveRequest(0, 0, 10)]


def test_memtis_cools() -> None:
    histogram = Histogram(1.0)
    for _ in range(3):
        histogram.tick(observation([8, 0, 0, 0], [10, 0, 0, 0], capacity=11))
    # Counts are halved at the ticks 4 and 8: cell 0 has 24, 12, 6, and cell 1 after three, six,
    # nine, twelve accesses 6 + 3. Without cooling, 24 and 15 are of one bin, too large to be hot.
    for _ in range(4):
        histogram.tick(observation([0, 3, 0, 0], [10, 0, 0, 0], capacity=11))
    last = histogram.tick(observation([0, 3, 0, 0], [10, 0, 0, 0], capacity=11, free=1))
    assert last == [MoveRequest(0, 1, 9), MoveRequest(1, 0, 10)]
