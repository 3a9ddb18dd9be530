# SPDX-License-Identifier: Apache-2.0
"""The shims' socket: who hangs up on whom, and who comes next."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.control.frames import FrameSocket, Message
from sentineld.control.server import listen
from sentineld.model import protocol
from sentineld.observe.shim_link import ShimLink
from sentineld.observe.shim_server import Receiver, ShimServer
from tests.unit.segment import Writer

HELLO = {"type": "hello", "version": protocol.SHIM_VERSION}


class Server:
    """A server whose loop turns when told; links: of all hellos, ends: how many ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.links: list[ShimLink] = []
        self.ends = self.taken = 0
        self.room = True
        self.loop = asyncio.new_event_loop()
        self._server = self.loop.run_until_complete(self._serve())

    async def _serve(self) -> ShimServer:
        return ShimServer(listen(self.path, 0o600, None), self._hello)

    def _hello(self, link: ShimLink) -> Receiver:
        self.links.append(link)
        return self._take

    def _take(self, message: Message | None, size_bytes: int) -> bool:
        self.ends += message is None
        self.taken += message is not None
        return self.room

    def turn(self) -> None:
        """Accept what has come, then read it."""
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def greet(self, hello: Message = HELLO) -> FrameSocket:
        """A new shim says hello."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(self.path))
        shim = FrameSocket(connection)
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
    # As a session does that ends of itself, in a thread of its own.
    server.links[0].close()
    shims.append(server.greet())  # a socket of the same number, if the first one's is free
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
