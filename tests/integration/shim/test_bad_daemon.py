# SPDX-License-Identifier: Apache-2.0
"""A daemon that hangs, lags or has another version leaves the losses unchanged, bit for bit.

test_training.py tests a daemon that dies or sends garbage; ../test_daemon_comes_and_goes.py tests
a daemon that restarts.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.model.protocol import Flag, Mode
from tests.integration.shim import daemon_side as side
from tests.integration.shim.daemon_side import Daemon, Training
from tests.integration.shim.test_training import check_losses, start

pytest.importorskip("torch")

TIMEOUT_MAX_NS = 60 * 10**9
"""TIMEOUT_NS_MAX in sentineld/shim/native/boundary.c."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    peer = Daemon(tmp_path / "shim.sock")
    yield peer
    peer.close()
    (tmp_path / "stop").touch()  # ends trainings that still run


def test_no_barrier_waits_for_a_hanging_daemon(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    side.manage(daemon, waits=((1, 0, 1),))
    # The shim limits this time-out to TIMEOUT_MAX_NS. The barrier's wait ends sooner, because
    # daemon.hang() stops the heartbeat, which is stale after 2 s.
    daemon.set("barrier_timeout_ns", int(side.PATIENCE_SECONDS * 1e9))
    daemon.hang()
    daemon.set("moves_done", 0)
    daemon.wait_steps(5)
    assert 0 < daemon.word("barrier_wait_ns") < TIMEOUT_MAX_NS // 2
    assert daemon.word("barrier_timeouts") == 1
    assert daemon.word("mode") == Mode.REPLAY
    check_losses(training)


def test_a_daemon_that_never_answers_does_not_stop_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `sentinelctl run`, which sets SENTINELD_FAST, the shim waits for the daemon's first
    message, but only for WELCOME_S."""
    monkeypatch.setenv("SENTINELD_FAST", "20%")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "shim.sock"))
        silent.listen()
        training = Training("cnn", socket_path=tmp_path / "shim.sock", stop=tmp_path / "stop")
        training.wait_losses(6)
        check_losses(training)


def test_a_daemon_that_reads_nothing_only_loses_records(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    side.manage(daemon)
    daemon.drain()
    unread = daemon.word("ring_head") - daemon.word("ring_records")
    daemon.set("ring_tail", unread % 2**64)  # as if the ring were full of unread records
    daemon.flags(Flag.RECORD)
    daemon.wait_steps(4)
    head, lost = daemon.word("ring_head"), daemon.word("ring_lost")
    assert lost > 0
    daemon.wait_steps(4)
    assert daemon.word("ring_head") == head
    assert daemon.word("ring_lost") > lost
    assert daemon.word("mode") == Mode.REPLAY
    assert daemon.word("diverged_steps") == 0
    # Once the daemon reads again, it gets complete steps again.
    first, second = daemon.record(2)
    assert side.sequence(first) == side.sequence(second) != []
    check_losses(training)


def test_a_refusal_is_printed_once_and_training_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    training = start(daemon, tmp_path, "cnn")
    reason = "process 7 speaks shim protocol 1, not 2"
    daemon.send({"type": "refused", "error": f"{reason}\n"})
    assert daemon.hung_up()
    training.wait_losses(20)
    assert training.shim_lines() == [f"sentineld.shim: running unmanaged: {reason}?"]
    losses = training.finish(managed=False)
    assert losses == training.plain_losses(len(losses))
