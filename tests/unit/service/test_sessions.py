# SPDX-License-Identifier: Apache-2.0
"""A session closes everything that it opened, however it ends."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameSocket, Message
from sentineld.control.server import Caller
from sentineld.model.attach_rule import AttachRule
from sentineld.observe.pidfd import start_time_ticks
from sentineld.observe.probing import Probing
from sentineld.observe.procs import ProcessEvent
from sentineld.service import sessions
from sentineld.session.session import Session
from sentineld.shim.writes import SOFT_DIRTY
from tests.unit.descriptors import no_descriptors, open_descriptors
from tests.unit.emulated import residency
from tests.unit.links import Linked
from tests.unit.segment import Writer
from tests.unit.service.shim_daemon import HELLO, Daemon, connected, greet, hang_up, say
from tests.unit.waiting import PATIENCE_S, wait

SESSIONS = 20
US = {"pid": os.getpid()}
ME = Caller(os.getuid(), threading.Event())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.close()


def attached_then_closed(daemon: Daemon) -> None:
    shim = greet(daemon)
    daemon.sessions.attach(ME, US)
    say(shim, {"type": "layout", "layout_id": 1, "residency": True}, [residency()])
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY)
    say(shim, {"type": "writes", "way": SOFT_DIRTY}, [pagemap, clear_refs])
    daemon.turn()
    hang_up(daemon, shim)


def detached_then_closed(daemon: Daemon) -> None:
    shim = greet(daemon)
    daemon.sessions.attach(ME, US)
    daemon.sessions.detach(ME, US)
    hang_up(daemon, shim)


def registered_twice(daemon: Daemon) -> None:
    shims = [greet(daemon), greet(daemon)]
    for shim in shims:
        shim.close()
    daemon.until(lambda: not daemon.sessions.all())


def refused(daemon: Daemon, fds: list[int], more: Message | None = None) -> None:
    shim = connected(daemon)
    say(shim, {**HELLO, **(more or {})}, fds)
    daemon.until(lambda: is_refused(shim))
    shim.close()


def is_refused(shim: FrameSocket) -> bool:
    try:
        return any(message["type"] == "refused" for message in shim.receive())
    except EOFError:
        return True


def of_a_dead_process(daemon: Daemon) -> None:
    segment, event = Writer(), os.eventfd(0)
    child = os.fork()
    if child == 0:
        shim = connected(daemon)
        shim.send(HELLO, [segment.fd, event])
        os._exit(0)
    os.waitpid(child, 0)
    os.close(segment.fd)
    os.close(event)
    daemon.turn()
    daemon.until(lambda: not daemon.sessions.all())


def held() -> tuple[int, int, int]:
    """Numbers of open descriptors, threads, and mappings of memfds."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = sum("memfd:" in line for line in maps)
    return len(open_descriptors()), threading.active_count(), mapped


@pytest.mark.parametrize(
    "life",
    [
        attached_then_closed,
        detached_then_closed,
        registered_twice,
        of_a_dead_process,
        lambda daemon: refused(daemon, [Writer().fd, *os.pipe()]),
        lambda daemon: refused(daemon, [os.memfd_create("none"), os.eventfd(0)]),
        lambda daemon: refused(daemon, [Writer().fd, os.eventfd(0)], {"residency": True}),
        lambda daemon: refused(
            daemon, [Writer().fd, os.eventfd(0), os.eventfd(0)], {"residency": True}
        ),
        lambda daemon: refused(daemon, [Writer().fd, os.eventfd(0)], {"version": 1}),
    ],
    ids=[
        "attached",
        "detached",
        "registered-twice",
        "dead",
        "no-eventfd",
        "no-segment",
        "no-residency",
        "bad-residency",
        "version",
    ],
)
def test_nothing_of_a_session_stays(
    daemon: Daemon, life: Callable[[Daemon], None], caplog: pytest.LogCaptureFixture
) -> None:
    # Captured log records would keep the frames and local variables of errors alive.
    caplog.set_level(logging.CRITICAL)
    life(daemon)  # the first run imports modules and fills caches
    # After the session's thread has released its objects, the loop closes them, possibly in another
    # thread. Therefore wait twice until there is no other thread.
    for _ in range(2):
        daemon.until(lambda: threading.active_count() == 1)
    gc.collect()  # objects of earlier tests
    before = held()
    for _ in range(SESSIONS):
        life(daemon)
    # The numbers may fall, because objects that earlier tests left behind can be freed in between.
    daemon.until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def test_a_session_ends_with_its_process_although_the_connection_stays_open(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EXIT_CHECK_S", 0.0)
    segment, event = Writer(), os.eventfd(0)
    (process_end, end_process), (heir_end, end_heir) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for end in (end_process, end_heir):
                os.close(end)
            shim = connected(daemon)
            shim.send(HELLO, [segment.fd, event])
            os.read(process_end if os.fork() else heir_end, 1)
        finally:
            os._exit(0)
    try:
        try:
            daemon.until(lambda: len(daemon.sessions.all()) == 1)
        finally:
            os.close(end_process)
            os.waitpid(child, 0)
        daemon.turn()
        assert len(daemon.sessions.all()) == 1

        def ended() -> bool:
            daemon.sessions.beat()
            return not daemon.sessions.all()

        daemon.until(ended)
    finally:
        for fd in (segment.fd, event, process_end, heir_end, end_heir):
            os.close(fd)


def test_a_session_begins_after_the_end_of_the_one_before(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process registers again while its first session is still ending. Its second session then
    watches the same process."""
    shims = [greet(daemon)]
    daemon.sessions.attach(ME, US)
    (first,) = daemon.sessions.all()
    ending, waits, calls = threading.Event(), threading.Event(), list[str]()

    def unwatch(pid: int) -> None:
        ending.set()
        wait(lambda: waits.is_set() or calls)
        calls.append("unwatch")

    def join(timeout_s: float | None = None) -> None:
        waits.set()
        Session.join(first, timeout_s)

    monkeypatch.setattr(first.machine, "unwatch", unwatch)
    monkeypatch.setattr(first.machine, "watch", lambda pid, uid: calls.append("watch"))
    monkeypatch.setattr(first, "join", join)
    first.end("the process closed its connection")
    assert ending.wait(PATIENCE_S)
    shims.append(greet(daemon, first.name))
    daemon.until(lambda: daemon.sessions.all()[0].lifecycle.state == "attached")
    assert calls == ["unwatch", "watch"]
    for shim in shims:
        shim.close()
    daemon.until(lambda: not daemon.sessions.all())


def test_a_verb_without_descriptors_fails_and_the_session_stays(daemon: Daemon) -> None:
    shim = greet(daemon)
    with no_descriptors(), pytest.raises(SentinelError) as caught:
        daemon.sessions.attach(ME, US)
    assert caught.value.code == "busy"
    (session,) = daemon.sessions.status(os.getuid())
    assert session["state"] == "registered"
    assert daemon.sessions.attach(ME, US)["state"] == "attached"
    hang_up(daemon, shim)


def test_a_hello_without_descriptors_is_refused_and_the_next_one_taken(daemon: Daemon) -> None:
    linked = Linked()
    linked.offer()
    with no_descriptors(), pytest.raises(SentinelError) as caught:
        linked.again()
    assert caught.value.code == "busy"
    linked.close()
    hang_up(daemon, greet(daemon))


def test_status_reads_the_kernels_counters_once_for_all_sessions(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = greet(daemon)
    sessions = daemon.sessions.all() * 3
    readings: list[Probing] = []
    with monkeypatch.context() as patch:
        patch.setattr(Probing, "counters", lambda probing: readings.append(probing))
        patch.setattr(daemon.sessions, "all", lambda: sessions)
        assert [one["disturbances"] for one in daemon.sessions.status(0)] == [[], [], []]
    assert len(readings) == 1
    hang_up(daemon, shim)


def test_a_recording_ends_when_its_caller_hangs_up(daemon: Daemon) -> None:
    shim = greet(daemon)
    caller = Caller(os.getuid(), threading.Event())
    problems: list[str] = []

    def record() -> None:
        with pytest.raises(SentinelError) as caught:
            daemon.sessions.record(caller, {**US, "steps": 1})
        problems.append(caught.value.message)

    thread = threading.Thread(target=record)
    thread.start()
    (session,) = daemon.sessions.all()
    wait(lambda: "recorded" in session.lifecycle.status.reason)
    caller.gone.set()
    thread.join(PATIENCE_S)
    assert problems == ["the caller has hung up"]
    # The session accepts requests again.
    wait(lambda: "not recorded" in session.lifecycle.status.reason)
    assert daemon.sessions.attach(ME, US)["state"] == "attached"
    hang_up(daemon, shim)


def test_a_process_that_fails_again_and_again_is_left(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    shim = greet(daemon)
    (session,) = daemon.sessions.all()
    empty = os.memfd_create("none")
    with suppress(EOFError):  # raised once the session has ended
        for _ in range(1000):
            shim.send({"type": "layout", "residency": True}, [empty])
            daemon.until(lambda: bool(shim.receive()))  # the session tells the shim to detach
    os.close(empty)
    daemon.until(lambda: not daemon.sessions.all())
    assert "times; the last time" in session.lifecycle.status.reason
    assert len(caplog.records) < 300
    shim.close()


def test_an_exec_before_the_hello_does_not_end_the_session(daemon: Daemon) -> None:
    before_ns = time.monotonic_ns()
    shim = greet(daemon)
    daemon.machine.on_process(ProcessEvent("exec", os.getpid(), os.getpid(), before_ns))
    daemon.sessions.attach(ME, US)
    daemon.machine.on_process(ProcessEvent("exec", os.getpid(), os.getpid(), time.monotonic_ns()))
    daemon.until(lambda: not daemon.sessions.all())
    hang_up(daemon, shim)


@pytest.mark.parametrize(
    ("rules", "auto_attach", "state", "goal"),
    [
        ((), False, "registered", "None"),
        ((), True, "attached", "policy auto, fast 20%"),
        ((AttachRule(),), False, "attached", "policy auto, fast 20%"),
        ((AttachRule(policy="static", fast="30%"),), True, "attached", "policy static, fast 30%"),
        ((AttachRule(command="no such command"),), False, "registered", "None"),
        ((AttachRule(command="no such command"),), True, "attached", "policy auto, fast 20%"),
        ((AttachRule(manage=False), AttachRule()), True, "registered", "None"),
    ],
)
def test_the_configuration_decides_which_processes_are_attached(
    daemon: Daemon, rules: tuple[AttachRule, ...], auto_attach: bool, state: str, goal: str
) -> None:
    rules = tuple(replace(rule, origin=f"rule {at}") for at, rule in enumerate(rules, 1))
    config = replace(daemon.machine.config, attach=rules, auto_attach=auto_attach)
    daemon.machine.config = config
    shim = greet(daemon)
    daemon.until(lambda: bool(shim.receive()))  # the welcome, which the session sends first
    (session,) = daemon.sessions.all()
    wait(lambda: session.lifecycle.status.reason != "the shim said hello" or state == "registered")
    (status,) = daemon.sessions.status(0)
    assert (status["state"], str(session.goal)) == (state, goal)
    by_rule = bool(rules) and rules[0].manage and not rules[0].command
    assert status["rule"] == ("rule 1" if by_rule else "")
    if by_rule:
        daemon.sessions.detach(ME, US)
        assert daemon.sessions.status(0)[0]["rule"] == ""
    hang_up(daemon, shim)


def test_a_restarted_daemon_shows_the_rule_that_attached_a_process(tmp_path: Path) -> None:
    def check(daemon: Daemon) -> None:
        shim = greet(daemon, f"{os.getpid()}-{start_time_ticks(os.getpid())}")
        daemon.until(lambda: daemon.sessions.status(0)[0]["rule"] == "rule 1")
        daemon.close()
        shim.close()

    first = Daemon(tmp_path)
    rule = AttachRule(origin="rule 1")
    first.machine.config = replace(first.machine.config, attach=(rule,))
    check(first)
    check(Daemon(tmp_path))


def test_a_weight_that_is_no_number_is_refused(daemon: Daemon) -> None:
    for weight in ("1", True, 10**400):
        with pytest.raises(SentinelError, match="weight"):
            daemon.sessions.attach(ME, {**US, "weight": weight})
