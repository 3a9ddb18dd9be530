# SPDX-License-Identifier: Apache-2.0
"""A plan's moves in the form that the shim's pager carries out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sentineld.model.plan import MOVE_DTYPE, Plan, Space
from sentineld.model.protocol import MoveFlag
from sentineld.plan.pager_moves import pager_moves, without_waits
from tests.unit.plan.toys import move, toy_plan, toy_profile

STATE, PARAMETER = 3, 4  # tensors of the toy, on the heap's pages 0..3 and 4..5


def with_moves(rows: list[tuple[int, ...]]) -> Plan:
    return replace(toy_plan(), moves=np.array(rows, MOVE_DTYPE))


def test_a_fetch_ends_after_the_last_stretch_that_uses_its_pages() -> None:
    # The state is used in stretch 3 only.
    plan = with_moves([move(1, 3, STATE, Space.HEAP, 0, 0, 2)])
    (found,) = pager_moves(plan, toy_profile())
    assert found.tolist() == (0, 2, 1, 2, 3, int(MoveFlag.HEAP), 0)


def test_an_eviction_ends_when_its_pages_are_used() -> None:
    # The parameter is used in stretches 1, 2 and 3.
    plan = with_moves([move(0, 1, PARAMETER, Space.HEAP, 1, 4, 2)])
    (found,) = pager_moves(plan, toy_profile())
    assert found.tolist() == (4, 2, 0, 1, 1, int(MoveFlag.HEAP | MoveFlag.EVICT), 0)


def test_an_eviction_ends_when_its_pages_are_moved_back() -> None:
    rows = [
        move(0, 1, STATE, Space.HEAP, 1, 0, 2),
        move(2, 3, STATE, Space.HEAP, 0, 1, 2),
    ]
    evict, fetch = pager_moves(with_moves(rows), toy_profile())
    assert (evict["boundary"], evict["end"]) == (0, 2)
    assert (fetch["boundary"], fetch["page"], fetch["end"]) == (2, 1, 2)


def test_an_eviction_ends_when_another_tensor_is_born_on_its_pages() -> None:
    # The gradient is born on pages 3 and 4 of the arena in stretch 2 and used last in stretch 3.
    plan = with_moves([move(0, 1, 2, Space.ARENA, 1, 3, 2)])
    (found,) = pager_moves(plan, toy_profile())
    assert (found["flags"], found["end"]) == (MoveFlag.EVICT, 2)


def test_evictions_come_first_at_each_boundary() -> None:
    rows = [
        move(2, 3, STATE, Space.HEAP, 0, 0, 2),
        move(2, 3, PARAMETER, Space.HEAP, 1, 4, 2),
        move(0, 1, STATE, Space.HEAP, 1, 0, 2),
    ]
    found = pager_moves(with_moves(rows), toy_profile())
    assert found["boundary"].tolist() == [0, 2, 2]
    assert (found["flags"] & MoveFlag.EVICT).tolist() == [1, 1, 0]


def test_a_plan_without_moves_has_none() -> None:
    assert len(pager_moves(with_moves([]), toy_profile())) == 0


def test_no_boundary_waits() -> None:
    layout = toy_plan().layout
    assert (without_waits(layout).waits == -1).all()
    assert len(without_waits(layout).waits) == len(layout.waits)
