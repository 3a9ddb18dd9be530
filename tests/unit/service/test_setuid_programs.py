# SPDX-License-Identifier: Apache-2.0
"""A session ends if its process executes a setuid program; verbs and hellos are then refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import encode
from sentineld.control.server import Caller
from tests.unit.observe.peers import USER, Other, folder, needs_root, program
from tests.unit.segment import Writer
from tests.unit.service.shim_daemon import HELLO, Daemon
from tests.unit.waiting import wait

OTHER = Caller(USER, threading.Event())


def wait_for_root(process: Other) -> None:
    """Wait until execve() of a setuid program has changed the process's user. A wait for the
    process's new name (comm) would end too early: the kernel changes the name before the user."""
    wait(lambda: os.stat(f"/proc/{process.process.pid}").st_uid == 0)


class Attacker:
    """An unprivileged process that has registered and can execute programs."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, segment = daemon, Writer()
        self.process = Other(str(daemon.path), pass_fds=[segment.fd])
        self.pid = {"pid": self.process.process.pid}
        frame = encode(HELLO)
        self.process.do(f"socket.send_fds(connection, [{frame}], [{segment.fd}, os.eventfd(0)])")
        os.close(segment.fd)
        daemon.until(lambda: bool(daemon.sessions.all()))

    def execute(self, program: Path) -> None:
        self.process.do(f"os.execv({str(program)!r}, ['sleep', '1000'])", answers=False)
        wait_for_root(self.process)


@pytest.fixture
def reachable() -> Iterator[Daemon]:
    """A daemon whose socket every user can reach."""
    with folder() as place:
        made = Daemon(place)
        yield made
        made.close()


@needs_root
@pytest.mark.parametrize("verb", ["attach", "record"])
def test_no_verb_looks_into_a_setuid_program(reachable: Daemon, verb: str) -> None:
    with folder() as place:
        attacker = Attacker(reachable)
        attacker.execute(program(place, 0o4755))
        with pytest.raises(SentinelError) as caught:
            getattr(reachable.sessions, verb)(OTHER, {**attacker.pid, "steps": 1})
        assert caught.value.code == "not-permitted"
        reachable.until(lambda: not reachable.sessions.all())
        attacker.process.end()


@needs_root
def test_an_attached_process_that_executes_a_setuid_program_is_left(reachable: Daemon) -> None:
    with folder() as place:
        attacker = Attacker(reachable)
        assert reachable.sessions.attach(OTHER, attacker.pid)["state"] == "attached"
        (session,) = reachable.sessions.all()
        attacker.execute(program(place, 0o4755))
        reachable.until(lambda: not reachable.sessions.all())
        assert "can't be managed" in session.lifecycle.status.reason
        attacker.process.end()


@needs_root
def test_a_hello_after_a_setuid_program_began_is_refused(reachable: Daemon) -> None:
    segment = Writer()
    with folder() as place:
        process = Other(str(reachable.path), pass_fds=[segment.fd])
        process.do(f"socket.send_fds(connection, [{encode(HELLO)}], [{segment.fd}, os.eventfd(0)])")
        sleep = program(place, 0o4755)
        process.do(f"os.execv({str(sleep)!r}, ['sleep', '1000'])", answers=False)
        wait_for_root(process)
        for _ in range(3):
            reachable.turn()
        assert reachable.sessions.all() == []
        process.end()
    os.close(segment.fd)
