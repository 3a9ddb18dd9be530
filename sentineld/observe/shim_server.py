# SPDX-License-Identifier: Apache-2.0
"""The socket at which training processes register."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.observe.shim_link import ShimLink

log = logging.getLogger(__name__)

Receiver = Callable[[Message | None, int], bool]
"""Takes a link's messages, each with the bytes of its frame, and None at the end. Returns whether
to read on; if not, the link's on_room() is called, from any thread, when there is room for more."""


class ShimServer:
    """Accepts shims, turns their hello into a ShimLink and passes their messages on."""

    def __init__(
        self,
        listener: socket.socket,
        on_hello: Callable[[ShimLink], Receiver],
    ) -> None:
        """on_hello: returns the receiver of the link's messages."""
        self._listener = listener
        self._on_hello = on_hello
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        frames = FrameSocket(connection)
        receiver: list[Receiver] = []
        self._loop.add_reader(frames.fileno(), self._read, frames, receiver)

    def _read(self, frames: FrameSocket, receiver: list[Receiver]) -> None:
        try:
            go_on = True
            for message, size_bytes in frames.receive_sized():
                if receiver:
                    go_on = receiver[0](message, size_bytes) and go_on
                elif message.get("type") == "hello":
                    link = ShimLink(frames, message)
                    link.on_room = lambda: self._resume(frames, receiver)
                    receiver.append(self._on_hello(link))
                else:
                    raise FrameError("the first message is not a hello")
        except (EOFError, FrameError, SentinelError) as error:
            if isinstance(error, SentinelError) and not receiver:
                self._refuse(frames, error)
            if not isinstance(error, EOFError):
                log.warning(
                    "closing the shim connection of process %d: %s", frames.peer()[0], error
                )
            self._loop.remove_reader(frames.fileno())
            frames.close()
            if receiver:
                receiver[0](None, 0)
        else:
            if not go_on:
                self._loop.remove_reader(frames.fileno())

    def _resume(self, frames: FrameSocket, receiver: list[Receiver]) -> None:
        """Read a connection again; called from a session's thread."""

        def resume() -> None:
            if frames.fileno() >= 0:
                self._loop.add_reader(frames.fileno(), self._read, frames, receiver)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(resume)

    @staticmethod
    def _refuse(frames: FrameSocket, error: SentinelError) -> None:
        """Send the reason, so that the training can print it for a user without our log."""
        try:
            frames.send({"type": "refused", "error": str(error)})
        except EOFError:
            pass  # the process is gone already

    def close(self) -> None:
        """Take no new shims."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
