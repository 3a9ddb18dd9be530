# SPDX-License-Identifier: Apache-2.0
"""The shims' socket: how connections begin and end, which shims are refused, and the limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FROM_SHIM, MESSAGES_MAX, FrameSocket, Message, encode
from sentineld.control.listener import Limits
from sentineld.control.server import listen
from sentineld.model import protocol
from sentineld.observe import message_memory, shim_server
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_server import Receiver, ShimServer
from tests.unit.control.lingering import LINGER_S, lingering, send_away
from tests.unit.descriptors import open_descriptors
from tests.unit.segment import Writer
from tests.unit.waiting import wait

HELLO = {"type": "hello", "version": protocol.SHIM_VERSION}


class Server:
    """A server whose event loop runs only in turn() and until().

    links: one link for each hello.
    ends: the number of links that ended.
    taken: the number of messages that the server has passed on.
    """

    def __init__(self, path: Path, sessions: Limits | None = None) -> None:
        self.path = path
        self._sessions = sessions
        self.links: list[ShimLink] = []
        self.unhandled: list[tuple[ShimLink, int]] = []
        self.ends = self.taken = 0
        self.room = True
        self.problem: SentinelError | None = None
        self.loop = asyncio.new_event_loop()
        self._server = self.loop.run_until_complete(self._serve())

    async def _serve(self) -> ShimServer:
        return ShimServer(listen(self.path, 0o600, None), self._hello, self._sessions)

    def _hello(self, link: ShimLink) -> Receiver:
        if self.problem is not None:
            raise self.problem
        self.links.append(link)

        def take(message: Message | None, size_bytes: int) -> bool:
            self.ends += message is None
            self.taken += message is not None
            self.unhandled.append((link, size_bytes))
            return self.room

        return take

    def until(self, done: Callable[[], object]) -> None:
        """Run the loop until done() is true."""

        def turned() -> object:
            self.turn()
            return done()

        wait(turned)

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.path))
        return connection

    def turn(self) -> None:
        """Accept the connections that have arrived, then read from them."""
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def greet(self, hello: Message = HELLO) -> FrameSocket:
        """Connect a new shim, which sends a hello; returns the shim's end of the connection."""
        shim = FrameSocket(self.connect())
        segment, event_fd = Writer(), os.eventfd(0)
        shim.send(hello, [segment.fd, event_fd])
        os.close(segment.fd)
        os.close(event_fd)
        self.turn()
        return shim

    def close(self) -> None:
        self._server.close()
        self.loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "shim.sock")
    yield made
    made.close()


def test_a_shim_that_goes_is_told(server: Server) -> None:
    shim = server.greet()
    shim.close()
    server.turn()
    assert server.ends == 1
    server.links[0].close()


def test_the_next_shim_is_heard_after_the_daemon_hung_up(server: Server) -> None:
    shims = [server.greet()]
    # If the daemon ends a session, the session's thread closes the link like this.
    server.links[0].close()
    shims.append(server.greet())  # reuses the first socket's descriptor number if that is free
    server.turn()
    assert len(server.links) == 2
    assert server.ends == 1
    server.links[1].close()
    server.turn()
    assert server.ends == 2
    for shim in shims:
        with pytest.raises(EOFError):
            shim.receive()
        shim.close()


def test_a_connection_is_read_on_when_its_session_has_room_again(server: Server) -> None:
    shim, server.room = server.greet(), False
    shim.send({"type": "note"})
    server.turn()
    shim.send({"type": "note"})
    server.turn()
    assert server.taken == 1
    server.room = True
    server.links[0].on_room()
    server.turn()
    assert server.taken == 2
    shim.close()
    server.turn()
    assert server.ends == 1
    server.links[0].close()


def test_a_child_on_its_parent_s_connection_is_refused(server: Server) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(server.path))
    shim = FrameSocket(connection)
    segment, event_fd = Writer(), os.eventfd(0)
    child = os.fork()
    if child == 0:
        shim.send(HELLO, [segment.fd, event_fd])
        os._exit(0)
    os.waitpid(child, 0)
    server.turn()
    (told,) = shim.receive()
    assert told["type"] == "refused"
    assert f"process {child} sent data on the connection of process {os.getpid()}" in told["error"]
    assert server.links == []
    shim.close()
    os.close(segment.fd)
    os.close(event_fd)


def test_a_shim_of_another_version_is_told_why(server: Server) -> None:
    shim = server.greet({**HELLO, "version": protocol.SHIM_VERSION - 1})
    (told,) = shim.receive()
    assert told["type"] == "refused"
    assert f"not {protocol.SHIM_VERSION}" in told["error"]
    with pytest.raises(EOFError):
        shim.receive()
    assert server.links == []
    shim.close()


def closed(connection: socket.socket) -> bool:
    """Whether the server has closed the connection. Discards received data."""
    connection.setblocking(False)
    try:
        return not connection.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_silence_and_half_a_hello_end_after_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_server, "HELLO_S", 0.2)
    silent, half = server.connect(), server.connect()
    half.send(encode(HELLO)[:-1])
    server.until(lambda: closed(silent) and closed(half))
    silent.close()
    half.close()


def descriptors_of(fd: int) -> int:
    """Number of this process's descriptors that refer to the same file as fd."""
    file, count = os.fstat(fd), 0
    for number in open_descriptors():
        # Another thread may close a listed descriptor before fstat() is called.
        with contextlib.suppress(OSError):
            count += os.path.samestat(os.fstat(int(number)), file)
    return count


def test_no_descriptor_is_received_before_the_hello_is_whole(server: Server) -> None:
    connection, segment, event_fd = server.connect(), Writer(), os.eventfd(0)
    hello = encode(HELLO)
    server.turn()
    before = descriptors_of(segment.fd)
    send_away(connection, hello[:5], [segment.fd, event_fd])
    for byte in hello[5:-1]:
        connection.send(bytes([byte]))
        server.turn()
    assert descriptors_of(segment.fd) == before
    connection.send(hello[-1:])
    server.until(lambda: server.links)
    assert descriptors_of(segment.fd) > before
    os.close(segment.fd)
    os.close(event_fd)
    connection.close()
    server.until(lambda: server.ends == 1)
    server.links[0].close()


def test_a_descriptor_before_the_hello_blocks_nothing(server: Server) -> None:
    connection = server.connect()
    with lingering() as stuck:
        send_away(connection, b"\x40\x00\x00\x00{", [stuck.fileno()] * 4)
        stuck.close()
        server.turn()
        connection.close()
        begin_s = time.monotonic()
        shim = server.greet()
        server.until(lambda: server.links)
        assert time.monotonic() - begin_s < LINGER_S / 2
    shim.close()
    server.until(lambda: server.ends == 1)
    server.links[0].close()


@pytest.mark.parametrize("length", [(64 << 10) + 1, 1 << 31])
def test_a_hello_that_is_too_long_ends_the_connection(server: Server, length: int) -> None:
    connection = server.connect()
    connection.send(length.to_bytes(4, "little"))
    server.until(lambda: closed(connection))
    connection.close()


def test_the_number_of_sessions_is_limited(tmp_path: Path) -> None:
    server = Server(tmp_path / "shim.sock", Limits(of_user=2, of_root=2, total=2))
    shims = [server.greet() for _ in range(3)]
    server.turn()
    assert len(server.links) == 2
    (told,) = shims[2].receive()
    assert "2 registered processes, which is the limit" in told["error"]
    shims[0].close()
    server.until(lambda: server.ends == 1)
    shims.append(server.greet())
    server.until(lambda: len(server.links) == 3)
    for shim in shims[1:]:
        shim.close()
    for link in server.links:
        link.close()
    server.until(lambda: server.ends == 3)
    server.close()


def test_a_shim_that_the_daemon_can_t_serve_is_told_why(server: Server) -> None:
    server.problem = SentinelError("busy", "no thread can be started")
    shim = server.greet()
    server.turn()
    (told,) = shim.receive()
    assert told == {"type": "refused", "error": "no thread can be started"}
    shim.close()


def test_many_small_messages_do_not_occupy_the_loop(server: Server) -> None:
    shim = server.greet()
    data = encode({}) * (10 * MESSAGES_MAX)
    assert shim.send_some(data) == len(data)
    server.loop.call_soon(server.loop.stop)
    server.loop.run_forever()
    assert server.taken <= MESSAGES_MAX
    server.until(lambda: server.taken == 10 * MESSAGES_MAX)
    shim.close()
    server.until(lambda: server.ends == 1)
    server.links[0].close()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_memory, "USER_BYTES", 1 << 20)
    monkeypatch.setattr(message_memory, "ROOT_BYTES", 1 << 20)


def push(server: Server, shims: list[FrameSocket], data: bytes) -> list[int]:
    """Send the same data on all connections, until the server reads no more.

    Returns the number of bytes sent on each connection.
    """
    sent = [0] * len(shims)
    idle = 0
    while idle < 100:
        before = sum(sent)
        for number, shim in enumerate(shims):
            with contextlib.suppress(BlockingIOError):
                sent[number] += shim.send_some(data[sent[number] :])
        server.turn()
        idle = 0 if sum(sent) > before else idle + 1
        time.sleep(0.001)
    return sent


@pytest.mark.usefixtures("little_memory")
def test_half_messages_of_one_user_are_limited(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shim_server, "STARVED_CHECK_S", 0.05)
    monkeypatch.setattr(shim_server, "FRAME_S", 600.0)
    shims = [server.greet() for _ in range(6)]
    server.until(lambda: len(server.links) == 6)
    half = encode({"text": "x" * (FROM_SHIM.frame_bytes - 100)})[:-1]
    sent = push(server, shims, half)
    # The server reads all sent bytes of one message. The bytes of the other messages only fill
    # their sockets' buffers.
    assert sorted(sent)[-1] == len(half)
    assert sorted(sent)[-2] < 1 << 20
    # After FRAME_S, the server closes connections whose incomplete messages keep other messages
    # waiting.
    monkeypatch.setattr(shim_server, "FRAME_S", 0.1)
    server.until(lambda: server.ends >= 2)
    for shim in shims:
        shim.close()
    for link in server.links:
        link.close()
    server.until(lambda: server.ends == 6)


@pytest.mark.usefixtures("little_memory")
def test_messages_count_until_they_are_handled(server: Server) -> None:
    shims = [server.greet() for _ in range(2)]
    server.until(lambda: len(server.links) == 2)
    message = {"text": "x" * 100_000}
    push(server, shims, encode(message) * 20)
    taken = server.taken
    # The limit of 1 MiB (see little_memory) is the size of about ten messages. The server may have
    # read a few more messages.
    assert 10 <= taken <= 12
    while server.unhandled:
        link, size_bytes = server.unhandled.pop()
        link.on_handled(size_bytes)
    server.until(lambda: server.taken > taken)
    for shim in shims:
        shim.close()
    for link in server.links:
        link.close()
    server.until(lambda: server.ends == 2)
