# SPDX-License-Identifier: Apache-2.0
"""Rates between readings, and step times, computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentineld.top.rates import STEP_WINDOW_NS, History, Mark, Rates, move_rates, step_time_ns
from sentineld.top.readings import Reading, SessionReading

SECOND_NS = 1_000_000_000
PID = 7
BEFORE = SessionReading(PID, "managed", promoted_bytes=1000, demoted_bytes=500, late_moves=4)


def reading(second: float, step: int, pid: int = 1, **fields: int) -> Reading:
    """A reading of a daemon with one session, at `second` on the daemon's clock. The daemon uses a
    tenth of a CPU. pid: the daemon's."""
    time_ns = int(second * SECOND_NS)
    session = replace(BEFORE, step=step, **fields)  # type: ignore[arg-type]
    return Reading("0.1.0", pid, time_ns, time_ns // 10, 0, "", (session,))


def test_rates_are_the_differences_over_the_time() -> None:
    now = replace(BEFORE, promoted_bytes=3000, demoted_bytes=500, late_moves=5)
    assert move_rates(BEFORE, now, 2 * SECOND_NS) == Rates(1000.0, 0.0, 0.5)


@pytest.mark.parametrize("elapsed_ns", [0, -1])
def test_without_time_there_is_no_rate(elapsed_ns: int) -> None:
    assert move_rates(BEFORE, BEFORE, elapsed_ns) == Rates()


@pytest.mark.parametrize("name", ["promoted_bytes", "demoted_bytes", "late_moves"])
def test_a_counter_that_decreases_gives_no_rate(name: str) -> None:
    now = replace(BEFORE, **{name: 0})  # type: ignore[arg-type]
    assert move_rates(BEFORE, now, SECOND_NS) == Rates()


def test_the_step_time_is_the_mean_between_marks() -> None:
    assert step_time_ns([]) is None
    assert step_time_ns([Mark(5, 1)]) is None
    assert step_time_ns([Mark(100, 1), Mark(700, 4)]) == 200.0


def test_the_first_reading_has_no_rates() -> None:
    history = History()
    assert history.rates(BEFORE.key) == Rates()
    history.add(reading(0, 10))
    assert history.rates(BEFORE.key) == Rates()
    assert history.cpu_share is None


def test_readings_give_rates_step_time_and_cpu_share() -> None:
    history = History()
    for second in range(4):
        history.add(reading(second, 10 + 4 * second, promoted_bytes=1000 + 50 * second))
    assert history.rates(BEFORE.key) == Rates(50.0, 0.0, 0.0, SECOND_NS / 4, 0)
    assert history.cpu_share == pytest.approx(0.1)


def test_a_step_that_began_before_the_first_reading_does_not_count() -> None:
    history = History()
    history.add(reading(0, 10))
    history.add(reading(1, 11))  # the beginning of step 10 was not seen
    assert history.rates(BEFORE.key).step_ns is None
    history.add(reading(3, 12))
    assert history.rates(BEFORE.key).step_ns == 2 * SECOND_NS


def test_long_steps_keep_their_time_and_the_idle_time_grows() -> None:
    history = History()
    for second, step in ((0, 1), (20, 2), (50, 3), (60, 3), (70, 3)):
        history.add(reading(second, step))
    assert history.rates(BEFORE.key).step_ns == 30 * SECOND_NS
    assert history.rates(BEFORE.key).idle_ns == 20 * SECOND_NS


def test_without_a_step_the_idle_time_counts_from_the_first_reading() -> None:
    history = History()
    for second in (3, 4, 9):
        history.add(reading(second, 1))
    assert history.rates(BEFORE.key) == Rates(0.0, 0.0, 0.0, None, 6 * SECOND_NS)


def test_old_steps_leave_the_mean() -> None:
    history = History()
    step = 0
    for second in range(30):
        step += 2 if second < 15 else 10
        history.add(reading(second, step))
    assert history.rates(BEFORE.key).step_ns == SECOND_NS / 10


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5)), min_size=2, max_size=40))
def test_the_step_time_is_within_the_window(progress: list[tuple[int, int]]) -> None:
    history, time_ms, step = History(), 0, 0
    shortest = None
    for elapsed_ms, steps in progress:
        time_ms, step = time_ms + elapsed_ms, step + steps
        history.add(reading(time_ms / 1000, step))
        if steps:
            slowest = elapsed_ms / steps
            shortest = slowest if shortest is None else min(shortest, slowest)
    found = history.rates(BEFORE.key).step_ns
    if found is not None and shortest is not None:
        assert found >= shortest * 1e6 * (1 - 1e-6)
        assert found <= max(time_ms * 1e6, STEP_WINDOW_NS)


@pytest.mark.parametrize(
    "later",
    [
        reading(1.5, 30, pid=2),  # a new daemon
        reading(0.5, 30),  # a daemon with the same pid after a reboot of its machine
        # a daemon with the same pid after a restart of its container
        replace(reading(1.5, 30), cpu_ns=reading(1, 20).cpu_ns - 1),
        reading(1.5, 3),  # the process called exec(), so its step count restarts
    ],
)
def test_counters_that_begin_anew_give_no_rates(later: Reading) -> None:
    history = History()
    history.add(reading(0, 10))
    history.add(reading(1, 20))
    history.add(later)
    assert history.rates(BEFORE.key) == Rates()


def test_a_session_that_ended_leaves_no_trace() -> None:
    history = History()
    history.add(reading(0, 10))
    history.add(replace(reading(1, 10), sessions=()))
    assert history.rates(BEFORE.key) == Rates()
    history.add(reading(2, 900))
    assert history.rates(BEFORE.key) == Rates()
    history.add(reading(3, 901))
    assert history.rates(BEFORE.key).step_ns is None
