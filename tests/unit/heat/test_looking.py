# SPDX-License-Identifier: Apache-2.0
"""Windows that wait for DAMON. tests/integration/test_temperature.py looks at real processes."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.heat import looking as heat_looking
from sentineld.heat.looking import Look, Looking
from sentineld.model.arrays import Integers
from sentineld.observe import kdamond
from sentineld.observe.accessed_frames import frames_problem
from sentineld.observe.kdamond import FRAMES, Kdamond
from tests.unit.waiting import PATIENCE_S, wait

usable = pytest.mark.skipif(
    os.geteuid() != 0 or frames_problem() is not None,
    reason="DAMON cannot watch page frames here",
)


def result(looking: Looking) -> Look:
    found: list[Look] = []

    def ended() -> bool:
        found.extend(filter(None, [looking.result()]))
        return bool(found)

    wait(ended)
    return found[0]


def test_without_pages_there_is_nothing_to_watch() -> None:
    looking = Looking("look-test")
    looking.begin(lambda: np.zeros(0, np.int64), 0, 0.0)
    look = result(looking)
    assert look.problem is None
    assert len(look.accessed) == 0


@usable
def test_damon_is_free_while_frames_are_read() -> None:
    """A process can keep its address space locked, so the read of its frames may last for ever."""
    reads, unlocked = threading.Event(), threading.Event()

    def frames() -> Integers:
        reads.set()
        assert unlocked.wait(PATIENCE_S)
        return np.array([1, 0])

    looking = Looking("look-test")
    looking.begin(frames, 2, 60.0)
    assert reads.wait(PATIENCE_S)
    try:
        Kdamond(FRAMES, os.getpid()).close()
        assert not looking.busy
    finally:
        unlocked.set()
    wait(lambda: looking.busy)
    look = result(looking)
    assert look.problem is None
    assert len(look.accessed) == 2
    assert not looking.busy


@usable
def test_frames_are_read_again_while_another_session_uses_damon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heat_looking, "REREAD_S", 0.01)
    read: list[int] = []

    def frames() -> Integers:
        read.append(1)
        return np.array([1])

    other, looking = Kdamond(FRAMES, os.getpid()), Looking("look-test")
    try:
        looking.begin(frames, 1, 60.0)
        wait(lambda: len(read) >= 3)
        assert looking.result() is None
        assert not looking.busy
    finally:
        other.close()
    assert result(looking).problem is None


def test_pages_that_leave_memory_during_the_wait_do_not_count_as_unused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise SentinelError("busy", "another session uses DAMON")

    monkeypatch.setattr(heat_looking, "accessed_frames", busy)
    frames = iter([np.array([1, 0]), np.array([0, 0])])
    looking = Looking("look-test")
    looking.begin(lambda: next(frames), 2, 60.0)
    problem = result(looking).problem
    assert problem is not None
    assert problem.message == "the sampled pages left memory while the session waited for DAMON"


@usable
def test_hidden_frames_are_reported() -> None:
    looking = Looking("look-test")
    looking.begin(lambda: np.zeros(1, np.int64), 1, 60.0)
    problem = result(looking).problem
    assert problem is not None
    assert problem.code == "not-permitted"


@usable
def test_the_wait_for_damon_is_limited() -> None:
    other = Kdamond(FRAMES, os.getpid())
    looking = Looking("look-test")
    try:
        looking.begin(lambda: np.array([1]), 1, 0.01)
        look = result(looking)
    finally:
        other.close()
    assert look.problem is not None
    assert look.problem.code == "busy"


@usable
def test_a_session_that_ends_while_it_waits_takes_no_window() -> None:
    other = Kdamond(FRAMES, os.getpid())
    looking = Looking("look-test")
    looking.begin(lambda: np.array([1]), 1, 60.0)
    wait(lambda: bool(kdamond._in_use._waiting))
    looking.end()
    assert not looking.busy
    other.close()
    look = result(looking)
    assert look.problem is not None
    assert look.problem.message == "the session has ended"
    Kdamond(FRAMES, os.getpid()).close()
