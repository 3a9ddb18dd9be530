# SPDX-License-Identifier: Apache-2.0
"""Moves of reactive policies, checked by hand: four cells of ten pages."""

from __future__ import annotations

import numpy as np

from sentineld.plan.policy import MoveRequest, Observation
from sentineld.policies.rivals.ial import Lists
from sentineld.policies.rivals.memtis import Histogram, thresholds
from sentineld.policies.rivals.tpp import Scanner


def observation(
    accesses: list[float], fast: list[int], free: int = 0, moves: int = 1000, capacity: int = 20
) -> Observation:
    pages = np.full(len(fast), 10)
    return Observation(
        now_ns=0.0,
        accesses=np.array(accesses),
        fast=np.array(fast),
        slow=pages - np.array(fast),
        free_pages=free,
        capacity_pages=capacity,
        move_pages=moves,
    )


def test_ial_exchanges_active_slow_and_inactive_fast_pages() -> None:
    # Cells 1 and 2 are fast; 0 and 1 are referenced.
    seen = observation([1, 3, 0, 0], [0, 10, 10, 0])
    lists = Lists(1.0)
    assert lists.tick(seen) == []  # one reference does not make a page active
    assert lists.tick(seen) == [MoveRequest(2, 1, 10), MoveRequest(0, 0, 10)]
    # Two pages can be moved: one each way.
    assert lists.tick(observation([1, 3, 0, 0], [0, 10, 10, 0], moves=8)) == [
        MoveRequest(2, 1, 4),
        MoveRequest(0, 0, 4),
    ]


def test_ial_takes_free_room_first() -> None:
    seen = observation([1, 3, 0, 0], [0, 10, 0, 0], free=6)
    lists = Lists(1.0)
    lists.tick(seen)
    assert lists.tick(seen) == [MoveRequest(0, 0, 6)]


def test_tpp_promotes_at_the_second_touch_and_keeps_room_for_births() -> None:
    # 5 of 1000 pages are free, 20 should be, and 10 pages fault at their second touch: 25 are
    # wanted. One fast cell is cold, the other one was just touched.
    seen = observation([1, 3, 0, 0], [0, 10, 10, 0], free=5, capacity=1000)
    scanner = Scanner(1.0)
    # The first touch only marks pages; demotion keeps the watermark.
    assert scanner.tick(seen) == [MoveRequest(2, 1, 10)]
    assert scanner.tick(seen) == [MoveRequest(2, 1, 10), MoveRequest(0, 0, 10)]


def test_tpp_leaves_headroom() -> None:
    scanner = Scanner(1.0)
    seen = observation([1, 0, 0, 0], [0, 10, 0, 0], free=22, capacity=1000)
    scanner.tick(seen)
    assert scanner.tick(seen) == [MoveRequest(0, 0, 10)]
    seen = observation([1, 1, 1, 1], [0, 10, 0, 0], free=6, capacity=1000)
    # No page is cold; 5 of the 6 free pages stay free.
    assert scanner.tick(seen) == [MoveRequest(0, 0, 1)]


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
    wished = histogram.tick(observation([9, 3, 0, 0], [0, 10, 10, 0], capacity=21, free=1))
    assert wished == [MoveRequest(2, 1, 9), MoveRequest(0, 0, 10)]


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
