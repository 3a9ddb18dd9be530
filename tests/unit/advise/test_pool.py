# SPDX-License-Identifier: Apache-2.0
"""Points of curves, simulated in child processes."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from multiprocessing import active_children

import pytest

from sentineld.advise.curve import Question
from sentineld.advise.machines import Machine
from sentineld.advise.pool import simulated_points, usable_cpus
from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.profile.trace import profile_of
from tests.unit.traces import recorded

PROFILE = profile_of(recorded())
CXL = Machine("cxl", preset_tiers("cxl", 1), 1)


def questions(count: int) -> list[Question]:
    return [Question(CXL, PROFILE.peak_bytes * (n + 1) // count, 1) for n in range(count)]


def test_processes_give_the_same_points() -> None:
    asked = questions(3)
    here = list(simulated_points(PROFILE, "sentinel+spill", asked, False, 1))
    there = list(simulated_points(PROFILE, "sentinel+spill", asked, False, 2))
    there.sort(key=lambda point: point.fast_bytes)
    assert [(one.fast_bytes, one.slowdown) for one in there] == [
        (one.fast_bytes, one.slowdown) for one in here
    ]
    assert [point.fast_bytes for point in here] == [one.fast_bytes for one in asked]
    assert active_children() == []


def test_no_process_is_left_if_the_caller_stops() -> None:
    with closing(simulated_points(PROFILE, "static", questions(200), False, 2)) as found:
        next(found)
        children = active_children()
        assert len(children) == 2
        # When a user presses Ctrl-C, the terminal sends SIGINT to the children, too.
        for child in children:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGINT)
        next(found)
    # When the executor notices that one process was killed, it terminates the other.
    killed = {-signal.SIGKILL, -signal.SIGTERM}
    assert {child.exitcode for child in children} <= killed


def test_a_killed_process_is_reported() -> None:
    found = simulated_points(PROFILE, "static", questions(2000), False, 2)
    next(found)
    (first, *_) = active_children()
    first.kill()
    with pytest.raises(SentinelError, match="ended unexpectedly") as error:
        list(found)
    assert "--jobs 1" in error.value.hint


def test_at_least_one_cpu_can_be_used() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
