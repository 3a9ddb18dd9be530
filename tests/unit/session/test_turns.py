# SPDX-License-Identifier: Apache-2.0
"""The interval at which a user's sessions check their processes. Each of these checks is a turn."""

from __future__ import annotations

import pytest

from sentineld.session.turns import TURNS_PER_S, Turns


def test_few_sessions_take_turns_as_often_as_they_want() -> None:
    turns = Turns()
    assert turns.interval_s(7, 0.05) == 0.05
    for _ in range(int(0.05 * TURNS_PER_S)):
        turns.enter(7)
    assert turns.interval_s(7, 0.05) == 0.05


def test_many_sessions_of_one_user_share_a_number_of_turns() -> None:
    turns = Turns()
    for _ in range(400):
        turns.enter(7)
    turns.enter(8)
    assert 400 / turns.interval_s(7, 0.05) == pytest.approx(TURNS_PER_S)
    assert turns.interval_s(8, 0.05) == 0.05
    for _ in range(400):
        turns.leave(7)
    assert turns.interval_s(7, 0.25) == 0.25
