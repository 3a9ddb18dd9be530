# SPDX-License-Identifier: Apache-2.0
"""A session's thread, its messages and its verbs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.base.units import FastBudget
from sentineld.config import Config
from sentineld.control.frames import Message
from sentineld.machine.machine import Machine
from sentineld.model.protocol import Flag
from sentineld.observe.backend import Backend, Target, Watch
from sentineld.observe.shim_only import SHIM_ONLY
from sentineld.session import session as session_module
from sentineld.session.intake import sampling
from sentineld.session.session import POLL_S, RECORDING_POLL_S, Session
from sentineld.session.state import Saved, StateFiles
from sentineld.session.turns import Turns
from tests.unit.descriptors import no_descriptors
from tests.unit.emulated import machine, residency
from tests.unit.links import Linked
from tests.unit.plan.toys import two_tiers
from tests.unit.segment import RECORDS
from tests.unit.toyprocess import ToyPages, ToySubstrate
from tests.unit.waiting import PATIENCE_S, wait
from tests.unit.workloads import Network, train


def machine_with_memory() -> Machine:
    """A machine whose fast tier has 1 GiB, so that budgets in bytes can be reserved."""
    return Machine(Config(), ToySubstrate(ToyPages()), two_tiers(), [])


def test_a_turn_without_descriptors_ends_the_management_only(tmp_path: Path) -> None:
    linked = Linked()
    session = Session(linked.link, machine(), StateFiles(tmp_path), Turns())
    linked.shim.send({"residency": True}, [fd := residency()])
    os.close(fd)
    linked.receive()
    session.on_message({"type": "layout", "layout_id": 1, "residency": True}, 100)
    with no_descriptors():
        session.start()
        wait(lambda: "Too many open files" in session.lifecycle.status.reason)
    assert session.lifecycle.state == "registered"
    session.attach(None, None)
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


def test_messages_that_wait_for_a_session_are_limited(tmp_path: Path) -> None:
    linked, woken = Linked(), threading.Event()
    session = Session(linked.link, machine(), StateFiles(tmp_path), Turns())
    linked.link.on_room = woken.set
    note: Message = {"type": "threads", "threads": 2}
    while session.on_message(note, 1000):
        pass
    assert not woken.is_set()
    session.start()
    assert woken.wait(PATIENCE_S)
    assert session.on_message(note, 1000)
    assert not session.on_message(note, 1 << 30)
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


def test_a_verb_whose_caller_has_hung_up_does_nothing_later(tmp_path: Path) -> None:
    """The session's thread starts after the caller has hung up. It does not execute the caller's
    verb."""
    linked = Linked()
    session = Session(linked.link, machine(), StateFiles(tmp_path), Turns())
    gone = threading.Event()
    gone.set()
    with pytest.raises(SentinelError, match="the caller has hung up"):
        session.record(1, gone)  # the session's thread has not started yet
    session.start()
    # If the process were being recorded, attach() would raise wrong-state.
    session.attach(None, None, threading.Event())
    assert session.lifecycle.state == "attached"
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


def test_a_request_that_begins_while_its_caller_hangs_up_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked, begun, release = Linked(), threading.Event(), threading.Event()
    session = Session(linked.link, machine(), StateFiles(tmp_path), Turns())

    def watch(pid: int, uid: int) -> None:
        begun.set()
        assert release.wait(PATIENCE_S)

    monkeypatch.setattr(session.machine, "watch", watch)
    session.start()
    gone = threading.Event()

    def record() -> None:
        with pytest.raises(SentinelError, match="the caller has hung up"):
            session.record(1, gone)

    caller = threading.Thread(target=record)
    caller.start()
    assert begun.wait(PATIENCE_S)
    gone.set()
    caller.join(PATIENCE_S)
    release.set()
    # If the recording had not been cancelled, attach() would raise wrong-state.
    session.attach(None, None)
    assert session.lifecycle.state == "attached"
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


class Training:
    """A session of a process whose steps repeat, and which refuses each layout."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def shim_only(target: Target) -> tuple[Backend, Watch]:
            return SHIM_ONLY, SHIM_ONLY.open(target)

        monkeypatch.setattr(sampling, "open_best", shim_only)
        self.linked = Linked(heap_used=64 << 20)
        self.session = Session(self.linked.link, machine(), StateFiles(folder), Turns())
        self.session.start()
        self.session.on_message({"type": "layers", "names": [""] * 32}, 100)

    def run(self) -> None:
        """Run steps until the process gets a layout, then refuse the layout."""
        network = Network(blocks=1, weights=1, activation_bytes=1 << 20)
        ring, writer = train(network, 6).take_records(), self.linked.writer
        for begin in range(0, len(ring), RECORDS // 2):
            writer.put(ring[begin : begin + RECORDS // 2])
            wait(lambda: writer.header["ring_tail"] == writer.header["ring_head"])
        (layout,) = [sent for sent in self.received() if sent["type"] == "layout"]
        answer = {"layout_id": layout["layout_id"], "ok": False, "error": "mbind was refused"}
        self.session.on_message({"type": "layout", **answer}, 100)

    def received(self) -> list[Message]:
        wait(lambda: self.linked.writer.header["flags"] & Flag.MESSAGE)
        return self.linked.shim.receive()

    def close(self) -> None:
        self.session.close()
        self.session.join(PATIENCE_S)
        self.linked.close_shim()


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    made = Training(tmp_path, monkeypatch)
    yield made
    made.close()


def test_a_process_that_refuses_the_layout_of_its_profile_is_not_managed(
    training: Training,
) -> None:
    training.session.attach(None, None)
    training.run()
    wait(lambda: training.session.lifecycle.state == "registered")
    reason = training.session.lifecycle.status.reason
    assert reason == "the process refused the layout: mbind was refused"


def test_a_recording_of_such_a_process_fails_for_this_reason(training: Training) -> None:
    failed: list[str] = []

    def record() -> None:
        with pytest.raises(SentinelError) as caught:
            training.session.record(2)
        failed.append(caught.value.message)

    caller = threading.Thread(target=record)
    caller.start()
    wait(lambda: training.linked.writer.header["flags"] & Flag.RECORD)
    training.run()
    caller.join(PATIENCE_S)
    assert failed == [f"process {os.getpid()}: the process refused the layout: mbind was refused"]


class Intervals(Turns):
    """Records the intervals that a session asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted_s = [0.0]

    def interval_s(self, uid: int, wanted_s: float) -> float:
        self.wanted_s.append(wanted_s)
        return super().interval_s(uid, wanted_s)


def test_a_recorded_process_that_writes_no_records_is_checked_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "QUIET_S", 0.2)
    linked, turns = Linked(), Intervals()
    session = Session(linked.link, machine(), StateFiles(tmp_path), turns)
    session.start()
    session.attach(None, None)
    wait(lambda: turns.wanted_s[-1] == POLL_S)
    before = len(turns.wanted_s)
    linked.writer.write(3)
    wait(lambda: RECORDING_POLL_S in turns.wanted_s[before:])
    wait(lambda: turns.wanted_s[-1] == POLL_S)
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


def test_a_plan_that_cannot_be_resumed_is_left_before_the_process_is_profiled(
    tmp_path: Path,
) -> None:
    linked, states = Linked(layout_id=5), StateFiles(tmp_path)
    session = Session(linked.link, machine(), states, Turns())
    linked.link.hello["session"] = session.name
    states.attached(session.name, Saved("30%", "static", emulated="", paged="/elsewhere"))
    session.start()
    wait(lambda: "attached again" in session.lifecycle.status.reason)
    messages = [message["type"] for message in linked.shim.receive()]
    assert messages == ["welcome", "detach", "watch_writes"]
    assert session.goal is not None
    assert session.goal.policy == "static"
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("attaches", [False, True])
def test_a_plan_whose_state_is_lost_is_left(tmp_path: Path, damaged: bool, attaches: bool) -> None:
    linked, states = Linked(layout_id=5), StateFiles(tmp_path)
    found = machine()
    found.configure(replace(found.config, auto_attach=attaches))
    session = Session(linked.link, found, states, Turns())
    linked.link.hello["session"] = session.name
    if damaged:
        (tmp_path / "sessions" / f"{session.name}.json").write_text("{}")
    session.start()
    expected = "attached with" if attaches else "the process leaves an earlier daemon's plan"
    wait(lambda: expected in session.lifecycle.status.reason)
    assert session.lifecycle.state == ("attached" if attaches else "registered")
    messages = [message["type"] for message in linked.shim.receive()]
    assert messages[:2] == ["welcome", "detach"]
    assert messages.count("detach") == 1
    # The barriers of all positions are open.
    assert int(linked.writer.header["moves_done"][0]) == (1 << 64) - 1
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


def test_an_attach_of_a_process_that_does_not_read_ends_its_session(tmp_path: Path) -> None:
    linked, found = Linked(layout_id=5), machine_with_memory()
    session = Session(linked.link, found, StateFiles(tmp_path), Turns())
    session.start()
    wait(lambda: "an earlier daemon's plan" in session.lifecycle.status.reason)
    with contextlib.suppress(EOFError):
        while True:
            linked.link.send({"type": "detach"})
    with pytest.raises(SentinelError, match="can't be reached: its state is ended"):
        session.attach(FastBudget.parse("1M"), None)
    session.join(PATIENCE_S)
    assert session.lifecycle.status.reason == "the process does not read its socket"
    assert found.budgets.held_bytes(linked.link) == 0
    linked.close_shim()


def test_an_attach_that_fails_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked, found = Linked(), machine_with_memory()
    session = Session(linked.link, found, StateFiles(tmp_path), Turns())
    session.start()

    def refuse() -> None:
        raise OSError("Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(session.observing, "prepare", refuse)
        with pytest.raises(SentinelError, match="Too many open files"):
            session.attach(FastBudget.parse("1M"), None)
    assert found.budgets.held_bytes(linked.link) == 0
    assert session.lifecycle.status.reason == "it can't be attached: Too many open files"
    session.attach(FastBudget.parse("1M"), None)
    assert found.budgets.held_bytes(linked.link) == 1 << 20
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()


def test_a_shortage_of_threads_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = Linked()
    session = Session(linked.link, machine(), StateFiles(tmp_path), Turns())
    session.start()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(session._driver, "attach", refuse)
        with pytest.raises(SentinelError, match="can't start new thread") as caught:
            session.attach(None, None)
    assert caught.value.code == "busy"
    session.attach(None, None)
    with monkeypatch.context() as patch:
        patch.setattr(session._driver, "turn", refuse)
        wait(lambda: "can't start new thread" in session.lifecycle.status.reason)
    assert session.lifecycle.state == "registered"
    session.attach(None, None)
    session.close()
    session.join(PATIENCE_S)
    linked.close_shim()
