# SPDX-License-Identifier: Apache-2.0
"""A listener limits the number of connections, in total and for each user."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control import listener as module
from sentineld.control.listener import Limits, Listener
from sentineld.control.server import listen


class Server:
    """A listener whose event loop runs only when the test runs it."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.accepted: list[socket.socket] = []
        self.refused: list[str] = []
        self.loop = asyncio.new_event_loop()
        self.listener = self.loop.run_until_complete(self._listen(limits))

    async def _listen(self, limits: Limits) -> Listener:
        def accept(connection: socket.socket, uid: int) -> None:
            assert uid == os.getuid()
            self.accepted.append(connection)

        def refuse(_: socket.socket, error: SentinelError) -> None:
            self.refused.append(str(error))

        return Listener(listen(self.path, 0o600, None), limits, accept, refuse)

    def turn(self) -> None:
        """Run a few iterations of the loop, which accept the connections that have arrived and run
        the callbacks that are due."""
        for _ in range(5):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.path))
        return connection

    def close(self) -> None:
        self.listener.close()
        for connection in self.accepted:
            connection.close()
        self.loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "socket", Limits(of_user=2, of_root=2, total=3))
    yield made
    made.close()


def test_a_user_has_a_limited_number_of_connections(server: Server) -> None:
    clients = [server.connect() for _ in range(3)]
    server.turn()
    assert len(server.accepted) == 2
    assert server.refused == [
        f"user {os.getuid()} has 2 connections, which is the limit (try again later)"
    ]
    assert clients[2].recv(1) == b""
    server.listener.release(os.getuid())
    clients.append(server.connect())
    server.turn()
    assert len(server.accepted) == 3
    for client in clients:
        client.close()


def duplicate() -> int | None:
    """Open a new descriptor; returns None if the process has reached its limit of descriptors."""
    try:
        return os.dup(0)
    except OSError:
        return None


def test_accepting_pauses_without_free_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 1000.0)
    server = Server(tmp_path / "socket", Limits(100, 100, 100))
    client = server.connect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    spare: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        while (fd := duplicate()) is not None:
            spare.append(fd)
        server.turn()
        # The listener has tried to accept once, not in each iteration of the event loop.
        assert len([r for r in caplog.records if "no connection is accepted" in r.message]) == 1
        assert not server.accepted
    finally:
        for fd in spare:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server.turn()
    assert not server.accepted
    monkeypatch.setattr(server.loop, "time", lambda: time.monotonic() + module.PAUSE_S)
    server.turn()
    assert len(server.accepted) == 1
    client.close()
    server.close()
