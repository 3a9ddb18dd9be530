# SPDX-License-Identifier: Apache-2.0
"""The shim's connection to the daemon: sends and receives messages, and reconnects.

Only wait() blocks. A missing, slow, dead or misbehaving daemon can make Client close the
connection, but never delays a training step.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import select
import socket
import struct
import time
from collections import deque
from typing import Any

SOCKET_VARIABLE = "SENTINELD_SHIM_SOCKET"
SOCKET_PATH = "/run/sentineld/shim.sock"
FAST_VARIABLE = "SENTINELD_FAST"
"""Set by `sentinelctl run`: the budget with which the process will be attached. "" means the budget
of the daemon's configuration. On paged tiers, a process with this variable gets a pager when it
starts."""
RETRY_SECONDS = 1.0
REFUSED_SECONDS = 60.0
"""Delay before reconnecting after the daemon has refused this process, for example because of the
shim's version. After the delay, a daemon of another version may be running."""
FRAME_BYTES_MAX = 16 << 20
BACKLOG_BYTES_MAX = 64 << 20
"""Unsent bytes above which the connection is closed."""
DESCRIPTORS_MAX = 16
READS_MAX = 16
"""Maximum number of reads (of up to 64 KiB each) in one call of receive(). The limit keeps a daemon
that never stops writing from delaying a step."""

Message = dict[str, Any]


class BrokenPeerError(Exception):
    """The daemon violated the protocol or closed the connection."""


class Client:
    """A connection to the daemon; tries to connect at most once per RETRY_SECONDS."""

    def __init__(self, path: str | None = None) -> None:
        """Create a client that is not connected yet; connect() connects it.

        path: the daemon's socket; default SENTINELD_SHIM_SOCKET or SOCKET_PATH.
        """
        self.path = path or os.environ.get(SOCKET_VARIABLE) or SOCKET_PATH
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._next_try = 0.0
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._outgoing: deque[tuple[bytes, list[int]]] = deque()

    @property
    def connected(self) -> bool:
        """Whether the connection is open. A failed send or receive closes it."""
        return self._socket is not None

    def connect(self) -> bool:
        """Connect if the retry delay has passed. Returns True if this call made a connection."""
        now = time.monotonic()
        if self._socket is not None or now < self._next_try:
            return False
        self._next_try = now + RETRY_SECONDS
        try:
            attempt = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:
            return False  # the process has no free descriptor
        try:
            attempt.connect(self.path)
        except OSError:
            attempt.close()
            return False
        self._socket = attempt
        self._poll = select.poll()
        self._poll.register(attempt, select.POLLIN)
        return True

    def back_off(self) -> None:
        """Close the connection and do not reconnect for REFUSED_SECONDS."""
        self.close()
        self._next_try = time.monotonic() + REFUSED_SECONDS

    def close(self) -> None:
        """Close the connection and discard unsent and unread data and descriptors."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._received.clear()
        waiting = [fd for _, fds in self._outgoing for fd in fds]
        for fd in [*self._descriptors, *waiting]:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._descriptors.clear()
        self._outgoing.clear()

    def send(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Queue a message with duplicates of the descriptors; no-op if not connected.

        Raises:
            OSError: a descriptor cannot be duplicated, for example because the process has too many
                open files.
        """
        if self._socket is None:
            return
        body = json.dumps(message).encode()
        frame = struct.pack("<I", len(body)) + body
        duplicates: list[int] = []
        with contextlib.ExitStack() as undo:
            for fd in descriptors:
                duplicates.append(os.dup(fd))
                undo.callback(os.close, duplicates[-1])
            undo.pop_all()
        self._outgoing.append((frame, duplicates))
        self.flush()

    def flush(self) -> None:
        """Send as much of the queue as the socket accepts without blocking."""
        while self._socket is not None and self._outgoing:
            frame, descriptors = self._outgoing[0]
            rights = array.array("i", descriptors)
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
            try:
                sent = self._socket.sendmsg([frame], ancillary, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if sum(len(waiting) for waiting, _ in self._outgoing) > BACKLOG_BYTES_MAX:
                    self.close()
                return
            except OSError:
                self.close()
                return
            for fd in descriptors:
                os.close(fd)
            if sent == len(frame):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = (frame[sent:], [])

    def wait(self, seconds: float) -> None:
        """Wait until data arrives, but at most `seconds`."""
        if self._socket is not None:
            self._poll.poll(max(round(seconds * 1000), 0))

    def receive(self) -> list[Message]:
        """Return the complete messages that have arrived, after at most READS_MAX reads.

        If the daemon has hung up or violated the protocol, closes the connection. The messages
        received before the error are still returned, but their descriptors are closed.
        """
        messages: list[Message] = []
        if self._socket is None or not self._poll.poll(0):
            return messages
        try:
            self._read(self._socket, messages)
        except (OSError, BrokenPeerError, ValueError, RecursionError):
            self.close()
        return messages

    def _read(self, connection: socket.socket, messages: list[Message]) -> None:
        for _ in range(READS_MAX):
            try:
                data, ancillary, flags, _ = connection.recvmsg(
                    65536, socket.CMSG_SPACE(4 * DESCRIPTORS_MAX), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            for level, kind, payload in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds = array.array("i")
                    fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                    self._descriptors.extend(fds)
            if flags & socket.MSG_CTRUNC or len(self._descriptors) > DESCRIPTORS_MAX:
                raise BrokenPeerError("more file descriptors than the protocol allows")
            if not data:
                raise BrokenPeerError("the daemon hung up")
            self._received += data
            self._take_frames(messages)

    def _take_frames(self, messages: list[Message]) -> None:
        while len(self._received) >= 4:
            (length,) = struct.unpack_from("<I", self._received)
            if length > FRAME_BYTES_MAX:
                raise BrokenPeerError(f"a frame of {length} bytes exceeds {FRAME_BYTES_MAX}")
            if len(self._received) < 4 + length:
                break
            message = json.loads(bytes(self._received[4 : 4 + length]))
            del self._received[: 4 + length]
            if not isinstance(message, dict) or not isinstance(message.get("type"), str):
                raise BrokenPeerError("a frame is not a JSON object with a type")
            messages.append(message)

    def take_descriptor(self) -> int:
        """Return the next received descriptor; the caller closes it.

        Raises:
            BrokenPeerError: no descriptor was received.
        """
        if not self._descriptors:
            raise BrokenPeerError("a message lacks its file descriptor")
        return self._descriptors.popleft()
