# SPDX-License-Identifier: Apache-2.0
"""Many successive sessions must not noticeably increase the daemon's use of resources."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.control.server import QUICK_THREADS
from tests.hostile.attacker import OTHER_USER, USER, Attacker, Say
from tests.hostile.daemon import Daemon, running
from tests.hostile.shim_client import registered
from tests.hostile.toy_training import ToyTraining

WARM_UP = 400
"""Number of sessions before the first measurement. The daemon's allocators retain free memory. The
retained amount grows by about 5 % in the first 200 sessions after the first managed one, and by
less than 2 % in the next 200 sessions."""
LONG_WARM_UP = 2000
SHARE = 0.05
"""Allowed growth since the warm-up, as a share of the value after the warm-up."""
SETTLE_S = 60.0
PACE_S = 0.005
MANAGED_EVERY = 100
"""One in this many sessions is attached, planned for and managed, which takes seconds."""
ATTACHED_EVERY = 5
PROFILED = ("allocation", "access", "planning", "entering")
WITHOUT_LOG_LIMIT = """
from sentineld.base import log_limit
log_limit.PERIOD_S = 0.0
from sentineld.daemon import main
main()
"""
"""Program that starts the daemon without its limit on log lines per minute. With this limit, the
number of lines per session would depend on the speed of the sessions."""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon without the limit on log lines per minute."""
    with running(command=("-c", WITHOUT_LOG_LIMIT)) as started:
        yield started


class Resources(NamedTuple):
    """The resources that the daemon uses."""

    descriptors: int
    threads: int
    resident_bytes: int
    log_bytes_per_session: float


def session(say: Say, shims: str, control: str, first: int, count: int) -> None:
    """Run `count` sessions, one after the other. Most of them only register. The others are
    attached and detached, or become managed.

    first: number of the first session; the numbers determine which sessions do more than register.
    """
    for number in range(first, first + count):
        if number % MANAGED_EVERY == MANAGED_EVERY - 1:
            _managed(shims, control)
        elif number % ATTACHED_EVERY == 0:
            _attached(shims, control)
        else:
            client, segment = registered(Path(shims))
            client.send({"type": "layers", "names": ["one", "two"]})
            client.close()
            segment.close()
        time.sleep(PACE_S)
    say("done")


def _attached(shims: str, control: str) -> None:
    client, segment = registered(Path(shims))
    pid = os.getpid()
    try:
        # The hello names no earlier session, so the daemon does not resume an earlier session, and
        # this attach succeeds.
        request(Path(control), "attach", pid=pid, fast="20%", policy="interleave")
        request(Path(control), "detach", pid=pid)
    finally:
        client.close()
        segment.close()


def _managed(shims: str, control: str) -> None:
    """Run a training until it is managed, and hang up without a detach."""
    training = ToyTraining(Path(shims))
    # Until the daemon has answered the hello, status shows the process's previous session.
    answer = training.client.answer()
    assert answer is not None
    assert answer["type"] == "welcome", answer
    pid = os.getpid()

    def state() -> str:
        sessions = request(Path(control), "status")["sessions"]
        return next((str(one["state"]) for one in sessions if one["pid"] == pid), "")

    try:
        training.run(lambda: state() in ("registered", "attached"))
        if state() == "registered":
            request(Path(control), "attach", pid=pid, fast="20%", policy="interleave")
        training.run(lambda: state() not in ("attached", "warm-up", *PROFILED))
        assert state() == "managed", request(Path(control), "status")["sessions"]
        for _ in range(20):
            training.step()
            time.sleep(0.005)
    finally:
        training.close()


def run_sessions(daemon: Daemon, count: int) -> None:
    """Run half of the sessions in a process of one user and, at the same time, the other half in a
    process of another user."""
    paths = str(daemon.shims), str(daemon.control)
    half = count // 2
    parts = [(USER, 0, half), (OTHER_USER, half, count - half)]
    log_begin = daemon.log_bytes()
    attackers = [Attacker(session, *paths, begin, share, user=u) for u, begin, share in parts]
    try:
        for attacker in attackers:
            assert attacker.heard(60 + count) == "done"
    except AssertionError as error:
        raise AssertionError(f"{error}\nthe log's end:\n{daemon.log_tail(log_begin)}") from None
    finally:
        for attacker in attackers:
            attacker.close()


def resources(daemon: Daemon, log_begin: int, sessions: int) -> Resources:
    """Wait until all sessions have ended; return the resources that the daemon then uses.

    log_begin: size of the log before the sessions. sessions: number of sessions.
    """
    deadline_s = time.monotonic() + SETTLE_S
    while daemon.status()["sessions"]:
        assert time.monotonic() < deadline_s, "sessions outlive their processes"
        time.sleep(0.1)
    last, since_s = (-1, -1), time.monotonic()
    while time.monotonic() - since_s < 1.0:
        assert time.monotonic() < deadline_s, "the daemon does not settle"
        now = daemon.descriptors(), daemon.threads()
        if now != last:
            last, since_s = now, time.monotonic()
        time.sleep(0.05)
    log_bytes = (daemon.log_bytes() - log_begin) / sessions
    return Resources(*last, daemon.resident_bytes(), log_bytes)


def soak(daemon: Daemon, warm_up: int, sessions: int) -> None:
    """Run `warm_up` sessions, then `sessions` further ones. Check that the further sessions hardly
    increase the daemon's use of resources."""
    begin = daemon.log_bytes()
    run_sessions(daemon, warm_up)
    before = resources(daemon, begin, warm_up)
    begin = daemon.log_bytes()
    run_sessions(daemon, sessions)
    after = resources(daemon, begin, sessions)
    print(f"after {warm_up} sessions: {before}")
    print(f"after {sessions} more: {after}")
    assert after.descriptors <= before.descriptors
    # The daemon starts the threads of its pool for quick verbs on demand. Some of these threads may
    # have started only after the warm-up.
    assert after.threads < before.threads + QUICK_THREADS
    assert after.resident_bytes <= before.resident_bytes * (1 + SHARE)
    assert after.log_bytes_per_session <= before.log_bytes_per_session * (1 + SHARE)


def test_a_hundred_sessions(daemon: Daemon) -> None:
    soak(daemon, WARM_UP, 100)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_ten_thousand_sessions(daemon: Daemon) -> None:
    # The memory that the daemon's allocators retain stops growing after about 2,000 sessions.
    soak(daemon, LONG_WARM_UP, 10_000)


def test_a_session_ends_with_its_process(daemon: Daemon) -> None:
    """The daemon ends the session of a killed process, which cannot send a last message."""
    attackers = [Attacker(stay, str(daemon.shims)) for _ in range(5)]
    for attacker in attackers:
        attacker.heard()
    assert len(daemon.status()["sessions"]) == 5
    for attacker in attackers:
        attacker.close()
    deadline_s = time.monotonic() + SETTLE_S
    while daemon.status()["sessions"]:
        assert time.monotonic() < deadline_s, "sessions outlive their processes"
        time.sleep(0.1)


def stay(say: Say, shims: str) -> None:
    client, _ = registered(Path(shims))
    say("registered")
    with contextlib.suppress(SentinelError):
        client.closed(600)
