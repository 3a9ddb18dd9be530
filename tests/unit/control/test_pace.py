# SPDX-License-Identifier: Apache-2.0
"""The limit on the share of the daemon's time that one user's messages may take."""

from __future__ import annotations

import pytest

from sentineld.control.pace import BURST_S, SHARE, Pace


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_read_at_once() -> None:
    pace = Pace(Clock())
    pace.charge(1, BURST_S)
    assert pace.rest_s(1) <= 0


def test_more_than_a_burst_waits_and_only_for_its_user() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.charge(1, BURST_S + 0.01)
    assert pace.rest_s(1) == pytest.approx(0.01 / SHARE)
    assert pace.rest_s(2) <= 0
    clock.now_s += 0.01 / SHARE
    assert pace.rest_s(1) == pytest.approx(0, abs=1e-6)


def test_the_share_holds_in_the_long_run() -> None:
    clock = Clock()
    pace = Pace(clock)
    taken_s = 0.0
    while clock.now_s < 1100:
        if pace.rest_s(1) <= 0:
            pace.charge(1, 0.002)
            taken_s += 0.002
        clock.now_s += 0.002
    assert taken_s == pytest.approx(100 * SHARE + BURST_S, rel=0.02)


def test_time_without_messages_is_not_saved_up() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.charge(1, 0.001)
    clock.now_s += 3600
    assert pace.rest_s(1) <= 0
    pace.charge(1, BURST_S + 0.01)
    assert pace.rest_s(1) == pytest.approx(0.01 / SHARE)
