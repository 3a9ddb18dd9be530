# SPDX-License-Identifier: Apache-2.0
"""Sessions of the shims' socket close everything that they opened, however the sessions end."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import logging
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config, TierOverrides
from sentineld.control.frames import FrameSocket, Message, encode
from sentineld.control.server import Caller, listen
from sentineld.host.presets import preset_tiers
from sentineld.machine.choose import substrate_of
from sentineld.machine.machine import Machine
from sentineld.model import protocol
from sentineld.observe.probing import Probing
from sentineld.observe.shim_server import ShimServer
from sentineld.service import sessions
from sentineld.service.sessions import Sessions
from sentineld.session.session import Session
from sentineld.session.state import StateFiles
from sentineld.session.turns import Turns
from sentineld.shim.writes import SOFT_DIRTY
from tests.unit.descriptors import open_descriptors
from tests.unit.links import Linked
from tests.unit.observe.peers import USER, Other, folder, needs_root, program
from tests.unit.segment import Writer
from tests.unit.waiting import wait

SESSIONS = 20
HELLO = {"type": "hello", "version": protocol.SHIM_VERSION}
US = {"pid": os.getpid()}
ME, OTHER = (Caller(uid, threading.Event()) for uid in (os.getuid(), USER))


def machine() -> Machine:
    """Emulated tiers, without probes and process events."""
    config = Config(fast="20%", tiers=TierOverrides(emulated="cxl"))
    return Machine(config, substrate_of(config), preset_tiers("cxl", 1), [])


def residency() -> int:
    """An empty residency segment."""
    fd = os.memfd_create("residency", os.MFD_ALLOW_SEALING)
    header = np.zeros(1, protocol.RESIDENCY_DTYPE)
    header["magic"], header["version"] = protocol.RESIDENCY_MAGIC, protocol.SHIM_VERSION
    header["page_bytes"] = 4096
    os.write(fd, header.tobytes().ljust(4096, b"\0"))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


class Daemon:
    """The shims' server and the table of sessions. Their loop runs only in turn() and until()."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shim.sock"
        self.sessions = Sessions(machine(), StateFiles(folder))
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(self._serve())

    async def _serve(self) -> ShimServer:
        return ShimServer(listen(self.path, 0o666, None), self.sessions.hello)

    def turn(self) -> None:
        for _ in range(3):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def until(self, done: Callable[[], bool]) -> None:
        """Run the loop until done() is true."""

        def turned() -> bool:
            self.turn()
            return done()

        wait(turned)

    def close(self) -> None:
        self.sessions.close()
        self.turn()
        self._server.close()
        self._loop.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.close()


def connected(daemon: Daemon) -> FrameSocket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(daemon.path))
    return FrameSocket(connection)


def say(shim: FrameSocket, message: Message, fds: list[int]) -> None:
    """Send a message with descriptors, then close the descriptors."""
    shim.send(message, fds)
    for fd in fds:
        os.close(fd)


def greet(daemon: Daemon) -> FrameSocket:
    """Connect a shim on emulated tiers and wait until it is registered."""
    shim, segment = connected(daemon), Writer()
    say(shim, {**HELLO, "residency": True}, [segment.fd, os.eventfd(0), residency()])
    daemon.until(lambda: len(daemon.sessions.all()) == 1)
    return shim


def hang_up(daemon: Daemon, shim: FrameSocket) -> None:
    shim.close()
    daemon.until(lambda: not daemon.sessions.all())


def attached_then_closed(daemon: Daemon) -> None:
    shim = greet(daemon)
    daemon.sessions.attach(ME, US)
    say(shim, {"type": "layout", "layout_id": 1, "residency": True}, [residency()])
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    clear_refs = os.open("/proc/self/clear_refs", os.O_WRONLY)
    say(shim, {"type": "writes", "way": SOFT_DIRTY}, [pagemap, clear_refs])
    daemon.turn()
    hang_up(daemon, shim)
    for file in daemon.path.parent.glob("sessions/*"):
        file.unlink()  # otherwise the process's next session would be attached, too


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
    """Numbers of descriptors, threads, and mappings of memfds."""
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
    caplog.set_level(logging.CRITICAL)  # captured records keep an error's frames and locals
    life(daemon)  # the first run imports modules and fills caches
    # The session's thread releases objects; the loop closes them later, possibly in another thread.
    # Therefore wait twice until there is no other thread.
    for _ in range(2):
        daemon.until(lambda: threading.active_count() == 1)
    gc.collect()  # objects of earlier tests
    before = held()
    for _ in range(SESSIONS):
        life(daemon)
    # The numbers may fall, because objects that earlier tests left behind can disappear meanwhile.
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
        comm = Path(f"/proc/{self.pid['pid']}/comm")
        wait(lambda: comm.read_text().startswith("sleep"))


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
        comm = Path(f"/proc/{process.process.pid}/comm")
        wait(lambda: comm.read_text().startswith("sleep"))
        for _ in range(3):
            reachable.turn()
        assert reachable.sessions.all() == []
        process.end()
    os.close(segment.fd)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Every call that needs a new descriptor fails with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # descriptors 0 to 2 only
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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
    session.join(10)
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
    assert woken.wait(10)
    assert session.on_message(note, 1000)
    assert not session.on_message(note, 1 << 30)
    session.close()
    session.join(10)
    linked.close_shim()


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
    thread.join(10)
    assert problems == ["the caller has hung up"]
    # The session accepts requests again.
    wait(lambda: "not recorded" in session.lifecycle.status.reason)
    assert daemon.sessions.attach(ME, US)["state"] == "attached"
    hang_up(daemon, shim)
    for file in daemon.path.parent.glob("sessions/*"):
        file.unlink()


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
    # If the recording had begun, attach() would raise wrong-state.
    session.attach(None, None, threading.Event())
    assert session.lifecycle.state == "attached"
    session.close()
    session.join(10)
    linked.close_shim()


def test_a_request_that_begins_while_its_caller_hangs_up_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked, begun, release = Linked(), threading.Event(), threading.Event()
    session = Session(linked.link, machine(), StateFiles(tmp_path), Turns())

    def watch(pid: int) -> None:
        begun.set()
        assert release.wait(30)

    monkeypatch.setattr(session.machine, "watch", watch)
    session.start()
    gone = threading.Event()

    def record() -> None:
        with pytest.raises(SentinelError, match="the caller has hung up"):
            session.record(1, gone)

    caller = threading.Thread(target=record)
    caller.start()
    assert begun.wait(30)
    gone.set()
    caller.join(30)
    release.set()
    # If the recording had not been cancelled, attach() would raise wrong-state.
    session.attach(None, None)
    assert session.lifecycle.state == "attached"
    session.close()
    session.join(10)
    linked.close_shim()


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
