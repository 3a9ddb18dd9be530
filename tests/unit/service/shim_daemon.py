# SPDX-License-Identifier: Apache-2.0
"""The daemon's side of the shims' socket, in the test's process."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from sentineld.control.frames import FrameSocket, Message
from sentineld.control.server import listen
from sentineld.model import protocol
from sentineld.observe.shim_server import ShimServer
from sentineld.service.sessions import Sessions
from sentineld.session.state import StateFiles
from tests.unit.emulated import machine, residency
from tests.unit.segment import Writer
from tests.unit.waiting import wait

HELLO = {"type": "hello", "version": protocol.SHIM_VERSION}


class Daemon:
    """The shims' server and the table of sessions. Their loop runs only in turn() and until()."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shim.sock"
        self.machine = machine()
        self.sessions = Sessions(self.machine, StateFiles(folder))
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


def connected(daemon: Daemon) -> FrameSocket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(daemon.path))
    return FrameSocket(connection)


def say(shim: FrameSocket, message: Message, fds: list[int]) -> None:
    """Send a message with descriptors, then close the descriptors."""
    shim.send(message, fds)
    for fd in fds:
        os.close(fd)


def greet(daemon: Daemon, session: str = "") -> FrameSocket:
    """Connect a shim on emulated tiers and wait until it is registered. session: the name of the
    session in which the shim was welcomed before, if any."""
    shim, segment = connected(daemon), Writer()
    hello = {**HELLO, "residency": True, "session": session}
    say(shim, hello, [segment.fd, os.eventfd(0), residency()])
    daemon.until(lambda: len(daemon.sessions.all()) == 1)
    return shim


def hang_up(daemon: Daemon, shim: FrameSocket) -> None:
    shim.close()
    daemon.until(lambda: not daemon.sessions.all())
