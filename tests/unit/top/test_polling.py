# SPDX-License-Identifier: Apache-2.0
"""Polls of a daemon that answers, refuses or does not exist."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.cli.output import Daemon
from sentineld.control.frames import Message
from sentineld.top.polling import Polled, Poller, poll
from tests.unit.cli.answering import answering
from tests.unit.top.answers import IDLE, TRAINING, residency, status

WAIT_S = 300.0


def refused(_: Message) -> Any:
    raise SentinelError("wrong-state", "process 4242 has no plan")


def test_a_poll_reads_the_chosen_sessions_residency(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: status(), residency=lambda _: residency()) as ctl:
        daemon = Daemon(ctl.socket)
        polled = poll(daemon, str(TRAINING))
        assert polled.reading is not None
        assert polled.residency is not None
        assert polled.residency.key == str(TRAINING)
        for key in (None, str(IDLE), "1"):  # no session, one without a plan, and one that has ended
            assert poll(daemon, key).residency is None
    assert [asked for asked in ctl.asked if asked[0] == "residency"] == [
        ("residency", {"pid": TRAINING})
    ]


def test_a_session_that_ends_during_the_poll_has_no_residency(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: status(), residency=refused) as ctl:
        polled = poll(Daemon(ctl.socket), str(TRAINING))
    assert polled.reading is not None
    assert (polled.residency, polled.error) == (None, None)


def test_a_daemon_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    polled = poll(Daemon(tmp_path / "none"), None)
    assert polled.reading is None
    assert polled.error is not None
    assert polled.error.code == "daemon-unreachable"


@pytest.fixture
def reports() -> queue.SimpleQueue[Polled]:
    return queue.SimpleQueue()


def test_the_poller_goes_on_until_it_is_stopped(
    tmp_path: Path, reports: queue.SimpleQueue[Polled]
) -> None:
    poller = Poller(Daemon(tmp_path / "control.sock"), 0.01, reports.put)
    poller.start()
    assert reports.get(timeout=WAIT_S).error is not None
    with answering(tmp_path, status=lambda _: status(), residency=lambda _: residency()):
        while reports.get(timeout=WAIT_S).error is not None:
            pass
        poller.choose(str(TRAINING))
        while reports.get(timeout=WAIT_S).residency is None:
            pass
        poller.stop()


def test_a_choice_ends_the_wait_for_the_next_poll(
    tmp_path: Path, reports: queue.SimpleQueue[Polled]
) -> None:
    with answering(tmp_path, status=lambda _: status(), residency=lambda _: residency()) as ctl:
        poller = Poller(Daemon(ctl.socket), 3600, reports.put)
        poller.start()
        assert reports.get(timeout=WAIT_S).residency is None
        poller.choose(str(TRAINING))
        assert reports.get(timeout=WAIT_S).residency is not None
        poller.stop()
