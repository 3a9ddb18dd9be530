# SPDX-License-Identifier: Apache-2.0
"""The socket at which training processes register."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.observe.shim_link import ShimLink

log = logging.getLogger(__name__)


class ShimServer:
    """Accepts shims, turns their hello into a ShimLink and passes their messages on."""

    def __init__(
        self,
        listener: socket.socket,
        on_hello: Callable[[ShimLink], Callable[[Message | None], None]],
    ) -> None:
        """on_hello: returns the receiver of the link's messages, which gets None at the end."""
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
        receiver: list[Callable[[Message | None], None]] = []
        self._loop.add_reader(frames.fileno(), self._read, frames, receiver)

    def _read(self, frames: FrameSocket, receiver: list[Callable[[Message | None], None]]) -> None:
        try:
            for message in frames.receive():
                if receiver:
                    receiver[0](message)
                elif message.get("type") == "hello":
                    receiver.append(self._on_hello(ShimLink(frames, message)))
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
                receiver[0](None)

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
