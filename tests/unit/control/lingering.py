# SPDX-License-Identifier: Apache-2.0
"""Descriptors whose last close() blocks."""

from __future__ import annotations

import array
import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

LINGER_S = 60
"""Seconds for which the last close() blocks. A test fails if a call takes half of this time."""


@contextmanager
def lingering() -> Iterator[socket.socket]:
    """A TCP socket with unsent data. Its last close() blocks for LINGER_S, or until the context
    ends if that is earlier."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(b"x" * 65536)
    with receiver:
        yield sender
        # The close below must not block.
        with contextlib.suppress(OSError):  # if the test has closed the socket
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        sender.close()


def send_away(connection: socket.socket, data: bytes, fds: list[int], flags: int = 0) -> None:
    """Send data with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    connection.sendmsg([data], rights, flags)
