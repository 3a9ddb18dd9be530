# SPDX-License-Identifier: Apache-2.0
"""Moves of the improved active list, checked by hand: four cells of ten pages."""

from __future__ import annotations

from sentineld.plan.policy import MoveRequest
from sentineld.policies.rivals.ial import Lists
from tests.unit.policies.rivals.observing import observation


def test_ial_exchanges_active_slow_and_inactive_fast_pages() -> None:
    # Cells 1 and 2 are fast; cells 0 and 1 are referenced.
    seen = observation([1, 3, 0, 0], [0, 10, 10, 0])
    lists = Lists(1.0)
    assert lists.tick(seen) == []  # one reference does not make a page active
    assert lists.tick(seen) == [MoveRequest(2, 1, 10), MoveRequest(0, 0, 10)]
    # 8 pages can be moved: 4 in each direction.
    assert lists.tick(observation([1, 3, 0, 0], [0, 10, 10, 0], moves=8)) == [
        MoveRequest(2, 1, 4),
        MoveRequest(0, 0, 4),
    ]


def test_ial_takes_free_room_first() -> None:
    seen = observation([1, 3, 0, 0], [0, 10, 0, 0], free=6)
    lists = Lists(1.0)
    lists.tick(seen)
    assert lists.tick(seen) == [MoveRequest(0, 0, 6)]
