# SPDX-License-Identifier: Apache-2.0
"""DRAGON's fetches, read-ahead and evictions, checked by hand: four cells of ten pages. Stretch k
uses cell k."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sentineld.plan.policy import MoveRequest
from sentineld.policies.registry import policy
from sentineld.policies.rivals.dragon import READ_AHEAD_PAGES, Dragon, Driver
from tests.unit.plan.toys import toy_profile
from tests.unit.policies.rivals.observing import seen


def driver(read_ahead_pages: int) -> Driver:
    """A driver that has seen a step, in which no page moved."""
    found = Driver(4, read_ahead_pages)
    for stretch in range(4):
        found.tick(seen(stretch, [0, 0, 10, 10]))
    return found


def test_the_least_recently_used_block_makes_room() -> None:
    # Stretch 0 has ended, and stretch 1 uses cell 1. Cell 3 was used one stretch after cell 2.
    assert driver(0).tick(seen(0, [0, 0, 10, 10])) == [
        MoveRequest(2, 1, 10),
        MoveRequest(1, 0, 10),
    ]


@pytest.mark.parametrize(("pages", "cells"), [(0, [0]), (1, [0, 1]), (10, [0, 1]), (11, [0, 1, 2])])
def test_blocks_that_begin_within_the_read_ahead_are_fetched(pages: int, cells: list[int]) -> None:
    # Stretch 3 has ended, and stretch 0 uses cell 0. All cells are slow, and memory has room.
    found = Driver(4, pages)
    for stretch in range(3):
        found.tick(seen(stretch, [0] * 4, free=40))
    moves = found.tick(replace(seen(3, [0] * 4, free=40), capacity_pages=40))
    assert moves == [MoveRequest(cell, 0, 10) for cell in cells]


def test_nothing_is_read_ahead_of_a_fast_block() -> None:
    # Stretch 3 begins; the cell that it uses is fast.
    assert driver(100).tick(seen(2, [0, 0, 10, 10])) == []


def test_the_read_ahead_is_swept() -> None:
    found = policy("dragon")
    assert isinstance(found, Dragon)
    reactors = found.reactors(toy_profile())
    assert [text for text, _ in reactors] == [f"{n} pages read ahead" for n in READ_AHEAD_PAGES]
