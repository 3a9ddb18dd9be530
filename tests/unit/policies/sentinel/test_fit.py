# SPDX-License-Identifier: Apache-2.0
"""Schedules within the capacities, checked by hand: chunks compete for room and moves."""

from __future__ import annotations

import numpy as np
import pytest

from sentineld.plan.items import Items
from sentineld.policies.lp.relax import Capacities, Prices
from sentineld.policies.sentinel.fit import MOVE_COST, Fitting
from tests.unit.policies.sentinel.drawn import drawn, items


def fitting(some: Items, room: list[float], moves: list[float], price: float = 0.1) -> Fitting:
    count = len(room)
    prices = Prices(np.full(count, price), np.full(count, price))
    return Fitting(some, Capacities(np.array(room), np.array(moves)), prices)


def lives(one: Fitting) -> list[str]:
    return drawn(one.fast, one.moving)


def test_what_is_read_most_is_fast() -> None:
    # There is room for one of three chunks, and nothing can move.
    one = fitting(items((0,), (0, 1, 2), (1, 3)), [1.0] * 4, [0.0] * 4)
    one.fill()
    assert lives(one) == ["ssss", "FFFF", "ssss"]
    assert one.score() == 3.0


def test_with_room_for_all_everything_is_fast_and_nothing_moves() -> None:
    one = fitting(items((0,), (1, 2), (3,), pages=2), [6.0] * 4, [9.0] * 4)
    one.fill()
    assert lives(one) == ["FFFF"] * 3
    assert one.score() == 8.0


def test_chunks_that_are_read_in_turn_share_the_room() -> None:
    # Each chunk is promoted in the stretch before its use, and takes room while in flight.
    one = fitting(items((0,), (4,), stretches=8), [1.0] * 8, [1.0] * 8)
    one.fill()
    held = one.fast | one.moving
    assert (held.sum(axis=1) <= 1).all()
    assert (one.moving.sum(axis=1) <= 1).all()
    assert one.lives().served(one.items).tolist() == [1.0, 1.0]
    assert one.score() == pytest.approx(2.0 - 4 * MOVE_COST)


def test_without_capacity_everything_is_slow() -> None:
    for room, moves in ((-3.0, 5.0), (0.0, 0.0)):
        one = fitting(items((0, 2), (1,)), [room] * 4, [moves] * 4)
        one.fill()
        assert lives(one) == ["ssss", "ssss"]
        assert one.score() == 0.0


def test_no_chunk_is_promoted_where_it_may_not_enter() -> None:
    some = items((0,), (4,), stretches=8)
    free = fitting(some, [1.0] * 8, [1.0] * 8)
    barred = Fitting(some, free.capacities, free.prices, np.zeros((8, 2), np.bool_))
    barred.fill()
    assert not (barred.moving & ~barred.fast).any()
    assert barred.score() < 2.0 - 4 * MOVE_COST


@pytest.mark.parametrize(
    ("furthest", "words"),
    [
        (0, ["UFDsssssssss", "sssssUFDssss"]),
        (1, ["FFDssssssssU", "ssssUFFDssss"]),
        (2, ["FFDsssssssUF", "sssUFFFDssss"]),
        # Each promotion starts as early as the other chunk's demotion permits, also across the
        # step's end.
        (9, ["FFDsssssUFFF", "sssUFFFDssss"]),
    ],
)
def test_promotions_start_earlier_where_room_and_moves_are_left(
    furthest: int, words: list[str]
) -> None:
    one = fitting(items((1,), (6,), stretches=12), [1.0] * 12, [1.0] * 12)
    one.fill()
    one.advance(furthest)
    assert lives(one) == words
    assert one.lives().served(one.items).tolist() == [1.0, 1.0]


def test_all_chunks_of_a_transient_tensor_are_born_on_one_tier() -> None:
    # At birth there is room for two of the tensor's three chunks. The third chunk cannot be born
    # fast, so all three are born slow.
    uses = ((0, 3), (0, 3), (0, 3))
    one = fitting(items(*uses, lasts=False), [2.0] * 4, [0.0] * 4)
    one.fill()
    assert sorted(lives(one)) == ["FFFF", "FFFF", "ssss"]
    one.unify_births()
    assert lives(one) == ["ssss"] * 3
    # If chunks can move, all are born slow, and two are promoted before their second use.
    one = fitting(items(*uses, lasts=False), [2.0] * 4, [2.0] * 4)
    one.fill()
    one.unify_births()
    assert len(set(one.fast[0].tolist())) == 1
    assert not one.fast[0].any()
    assert one.lives().served(one.items).sum() == 2.0


def test_the_other_chunks_follow_if_they_fit() -> None:
    one = fitting(items((0, 3), (), lasts=False), [2.0] * 4, [0.0] * 4)
    one.fill()
    assert lives(one) == ["FFFF", "ssss"]
    one.unify_births()
    assert lives(one) == ["FFFF", "FFFF"]


def test_persistent_chunks_of_a_tensor_may_differ() -> None:
    some = items((0, 3), ())
    some.tensor[:] = 0
    one = fitting(some, [2.0] * 4, [0.0] * 4)
    one.fill()
    one.unify_births()
    assert lives(one) == ["FFFF", "ssss"]
