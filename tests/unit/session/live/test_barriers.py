# SPDX-License-Identifier: Apache-2.0
"""When barriers hold the process. After a time-out, all barriers let the process pass until the
moves have caught up."""

from __future__ import annotations

import os

import pytest

from sentineld.observe.control_segment import ControlSegment
from sentineld.session.live.barriers import Barriers
from tests.unit.segment import Writer

STEP = 10 << 32


class Process:
    """Barriers, and the control words of a process."""

    def __init__(self, barrier_timeout_ns: int) -> None:
        writer = Writer(barrier_timeout_ns=barrier_timeout_ns, barrier_timeouts=3, position=STEP)
        segment = ControlSegment(writer.fd)
        os.close(writer.fd)
        self.header = writer.header
        self.barriers = Barriers(segment)


@pytest.fixture
def process() -> Process:
    return Process(2_000_000_000)


def test_barriers_hold_though_some_have_timed_out_under_another_plan(process: Process) -> None:
    process.header["position"] = STEP | 1
    assert process.barriers.hold(STEP)


def test_barriers_before_the_plan_was_followed_may_not_have_waited(process: Process) -> None:
    assert not process.barriers.hold(STEP - 1)


def test_after_a_time_out_none_holds_until_the_moves_have_caught_up(process: Process) -> None:
    process.header["position"] = STEP | 5
    process.header["barrier_timeouts"] = 4
    assert not process.barriers.hold(STEP | 3)
    process.header["position"] = STEP | 7
    assert not process.barriers.hold(STEP | 4)
    # Now the moves up to boundary 5, where the time-out was found, are complete. So the process
    # waits at barriers again. But the barriers up to boundary 7, its current position, count as
    # passed without waiting, so hold() is false until the moves up to boundary 7 are complete.
    assert not process.barriers.hold(STEP | 5)
    process.header["position"] = STEP | 8
    assert not process.barriers.hold(STEP | 6)
    assert process.barriers.hold(STEP | 7)
    process.header["barrier_timeouts"] = 5
    assert not process.barriers.hold(STEP | 7)


def test_without_a_time_out_no_barrier_holds() -> None:
    assert not Process(0).barriers.hold(STEP)
