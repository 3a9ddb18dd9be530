# SPDX-License-Identifier: Apache-2.0
"""Sessions without the shim: verbs and the daemon's shutdown while a session is stuck, a hello
during an attach, and the reasons in the status.

A stuck session is stuck in a turn, its periodic check of the processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.control.server import Caller
from sentineld.heat import table
from sentineld.heat.keeping import Keeping
from sentineld.heat.members import Members
from sentineld.heat.scanning import Scanning
from sentineld.heat.session import KNOWN
from sentineld.host.swap import Swap
from sentineld.machine import swapped
from sentineld.machine.machine import Machine
from sentineld.machine.swapped import SwapSubstrate
from sentineld.observe.pidfd import children
from sentineld.service import sessions as module
from sentineld.service.sessions import Sessions
from sentineld.session.lifecycle import State, Status
from sentineld.session.state import StateFiles
from tests.unit.block_process import MIB, block_process
from tests.unit.waiting import PATIENCE_S, wait

GIB = 1 << 30


class Stuck:
    """The table of sessions, and a session whose turns wait until `let` is set."""

    def __init__(self, sessions: Sessions, pid: int, let: threading.Event) -> None:
        self.sessions, self.let = sessions, let
        self.arguments = {"pid": pid, "fast": "1G"}
        sessions.attach(self.caller(), self.arguments)
        (self.session,) = sessions.heat.all()

    def caller(self, gone: bool = False) -> Caller:
        caller = Caller(os.getuid(), threading.Event())
        if gone:
            caller.gone.set()
        return caller

    def ended(self) -> bool:
        """Let the session go on, and wait until it has ended."""
        self.let.set()
        wait(lambda: self.session.ended)
        return self.session.join(PATIENCE_S)


class Registered:
    """A session of a process that has registered by the shim, without a thread."""

    name = "registered"

    def __init__(self, *_: object) -> None:
        self.lifecycle = SimpleNamespace(
            state=State.REGISTERED, status=Status(State.REGISTERED, "it sent a hello")
        )

    def on_message(self, message: object, size_bytes: int) -> bool:
        return True

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def join(self, timeout_s: float) -> bool:
        return True


@pytest.fixture
def sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sessions]:
    """The table of sessions of a machine with swap."""
    for one in (swapped, table):
        monkeypatch.setattr(one, "read_swap", lambda: Swap(8 * GIB, 0))
    config = Config(tiers=TierOverrides(swap=True))
    substrate = SwapSubstrate(config.tiers)
    made = Sessions(Machine(config, substrate, substrate.tiers(), []), StateFiles(tmp_path))
    yield made
    made.close()


@pytest.fixture
def stuck(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    turned, let = threading.Event(), threading.Event()

    def look(_: Members) -> None:
        turned.set()
        let.wait()

    monkeypatch.setattr(Members, "look", look)
    with block_process() as process:
        made = Stuck(sessions, process.pid, let)
        assert turned.wait(PATIENCE_S)
        yield made
        let.set()


def in_time(stuck: Stuck, call: Any, *arguments: object) -> None:
    """Call a function in another thread. The call must end although the session is stuck. Raises
    the function's error."""
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call, *arguments)
        try:
            called.result(PATIENCE_S)
        finally:
            # If the function waits for the session, let the session go on, so that the test ends.
            if not called.done():
                stuck.let.set()


def test_a_stopping_daemon_waits_for_a_limited_time(
    stuck: Stuck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    in_time(stuck, stuck.sessions.close)
    assert not stuck.session.ended
    assert stuck.ended()


def test_a_detach_ends_when_its_caller_hangs_up(stuck: Stuck) -> None:
    with pytest.raises(SentinelError, match="the caller has hung up"):
        in_time(stuck, stuck.sessions.detach, stuck.caller(gone=True), stuck.arguments)
    assert not stuck.session.ended
    assert stuck.ended()
    assert stuck.session.status.reason == "detached"


def test_a_new_budget_whose_caller_hangs_up_is_not_set(stuck: Stuck) -> None:
    session, before = stuck.session, stuck.session.goal
    arguments = {**stuck.arguments, "fast": "2G"}
    with pytest.raises(SentinelError, match="the caller has hung up"):
        in_time(stuck, stuck.sessions.attach, stuck.caller(gone=True), arguments)
    stuck.let.set()
    # The session's thread handles this detach after the attach whose caller has hung up.
    stuck.sessions.detach(stuck.caller(), stuck.arguments)
    assert session.goal == before


def test_a_hello_while_a_group_is_opened_is_not_missed(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Session", Registered)
    with block_process() as process:
        process.run("import os, signal")
        process.run("child = os.fork() or (libc.prctl(1, 9), signal.pause())")
        (child,) = children(process.pid)
        link: Any = SimpleNamespace(pid=child, uid=os.getuid())

        def hello_meanwhile() -> Swap:
            """The attach reads the swap after it has opened the processes."""
            sessions.hello(link)
            return Swap(8 * GIB, 0)

        monkeypatch.setattr(table, "read_swap", hello_meanwhile)
        caller = Caller(os.getuid(), threading.Event())
        sessions.attach(caller, {"pid": process.pid, "tree": True, "fast": "1G"})
        (session,) = sessions.heat.all()
        wait(lambda: session.figures.processes == (process.pid,))
        assert session.figures.left_out_reason == f"process {child} runs under the shim"
        sessions.detach(caller, {"pid": process.pid})


def test_a_budget_that_needs_too_much_swap_is_refused(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "read_swap", lambda: Swap(16 * MIB, 8 * MIB))
    caller = Caller(os.getuid(), threading.Event())
    with block_process() as process, pytest.raises(SentinelError) as caught:
        sessions.attach(caller, {"pid": process.pid, "fast": "1M"})
    assert caught.value.code == "budget-too-large"
    # Sessions leave a sixteenth of the swap free.
    assert "only 7.0 MiB of the 8.0 MiB that are free in swap" in caught.value.message


def test_the_reason_why_nothing_can_be_paged_out_passes(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = "swap is nearly full"
    answer = SimpleNamespace(reason=full, bytes=0, calls=0)

    def keep(self: Keeping, resident_bytes: int, budget_bytes: int) -> str:
        self.paged_out_bytes += answer.bytes
        answer.calls += 1
        return answer.reason

    monkeypatch.setattr(Keeping, "keep", keep)
    monkeypatch.setattr(Scanning, "warm", True)
    with block_process() as process:
        caller = Caller(os.getuid(), threading.Event())
        sessions.attach(caller, {"pid": process.pid, "fast": "1G"})
        (session,) = sessions.heat.all()
        wait(lambda: session.status.reason == full)
        answer.reason, before = "", answer.calls
        wait(lambda: answer.calls > before + 2)
        assert session.status.reason == full
        answer.bytes = 4096
        wait(lambda: session.status.reason == KNOWN)
        sessions.detach(caller, {"pid": process.pid})
