# SPDX-License-Identifier: Apache-2.0
"""Framed JSON over a Unix stream socket, with file descriptors.

A frame is a 4-byte little-endian length and that many bytes of UTF-8 JSON (an
object). File descriptors travel as SCM_RIGHTS on the frame's first byte. The
control socket and the shim's socket both speak it.
"""

from __future__ import annotations

import array
import contextlib
import json
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from sentineld.base.closing import close_connection, close_untrusted
from sentineld.base.errors import SentinelError

HELLO_BYTES_MAX = 64 << 10
FDS_MAX = 8
SO_PEERPIDFD = 77
"""Linux 6.5, asm-generic; Python has no name for it."""
_SO_PEEK_OFF = 42  # asm-generic; Python has no name for it
_CREDENTIALS = struct.Struct("3i")
SCM_MAX_FD = 253
"""Descriptors that one message can carry (include/net/scm.h). A receiver has room for all of them:
the kernel would close the others within recvmsg(), which may block."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * SCM_MAX_FD) + socket.CMSG_SPACE(_CREDENTIALS.size)
READS_MAX = 4
"""Reads of 64 KiB per call of receive(), so that one peer cannot occupy the event loop."""

Message = dict[str, Any]


class FrameLimits(NamedTuple):
    """Limits of a frame, and with it of the memory that its message takes once decoded."""

    frame_bytes: int
    values: int  # commas and brackets in its text
    objects: int  # opening braces: an object takes up to 100 times the memory of its text


FROM_SHIM = FrameLimits(4 << 20, 400_000, 64)
"""The largest message has the names of a model's tensors. 10,000 parameters under Adam take 2 MiB
and 120,000 values."""
REQUEST = FrameLimits(64 << 10, 1000, 16)
ANSWER = FrameLimits(64 << 20, 1 << 30, 1 << 30)
"""The daemon is trusted by its clients."""


class FrameError(Exception):
    """The peer sent an invalid frame; the connection is unusable from then on."""


def encode(message: Message) -> bytes:
    """Encode a message as a frame."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return struct.pack("<I", len(body)) + body


class FrameBuffer:
    """Decodes a byte stream into messages."""

    def __init__(self, limits: FrameLimits) -> None:
        self._limits = limits
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """The messages that this data completes. Raises FrameError if one is not a JSON object."""
        return [message for message, _ in self.feed_sized(data)]

    def feed_sized(self, data: bytes) -> list[tuple[Message, int]]:
        """As feed(), each message with the bytes of its frame."""
        self._bytes += data
        messages: list[tuple[Message, int]] = []
        while len(self._bytes) >= 4:
            length = int.from_bytes(self._bytes[:4], "little")
            if length > self._limits.frame_bytes:
                raise FrameError(f"a frame of {length} bytes exceeds the limit")
            if len(self._bytes) < 4 + length:
                break
            body = bytes(self._bytes[4 : 4 + length])
            del self._bytes[: 4 + length]
            objects = body.count(b"{")
            values = body.count(b",") + body.count(b"[") + objects
            if values > self._limits.values or objects > self._limits.objects:
                raise FrameError("a frame holds too many values")
            try:
                message = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise FrameError(f"not JSON: {error}") from None
            if not isinstance(message, dict):
                raise FrameError("a frame does not hold a JSON object")
            messages.append((message, 4 + length))
        return messages


class FrameSocket:
    """A non-blocking stream socket that carries frames and file descriptors."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        # The listener has set it, too, or data that comes before this would have no sender.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket = connection
        self._buffer = FrameBuffer(FROM_SHIM)
        self._peeked: bytearray | None = None
        self._fds: deque[int] = deque()  # one thread appends, another takes

    def fileno(self) -> int:
        """The socket's descriptor, for event loops."""
        return self._socket.fileno()

    def peek_frame(self) -> bool:
        """Whether the connection's first frame has arrived as a whole. It stays in the socket, and
        so do its descriptors.

        Raises FrameError if it exceeds HELLO_BYTES_MAX, EOFError if the peer closed the connection.
        """
        if self._peeked is None:
            self._peeked = bytearray()
            # Each peek goes on where the last one ended, also beyond data with descriptors.
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, 0)
        while not self._has_frame(self._peeked):
            try:
                data = self._socket.recv(HELLO_BYTES_MAX, socket.MSG_PEEK)
            except (BlockingIOError, InterruptedError):
                return False
            except ConnectionError:
                raise EOFError from None
            if not data:
                raise EOFError
            self._peeked += data
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, -1)
        return True

    @staticmethod
    def _has_frame(data: bytes | bytearray) -> bool:
        length = int.from_bytes(data[:4], "little") if len(data) >= 4 else 0
        if length > HELLO_BYTES_MAX:
            raise FrameError(f"a first frame of {length} bytes exceeds the limit")
        return len(data) >= 4 + length and len(data) >= 4

    def receive(self) -> list[Message]:
        """The messages that have arrived; see receive_sized()."""
        return [message for message, _ in self.receive_sized()]

    def receive_sized(self) -> list[tuple[Message, int]]:
        """The messages that have arrived, each with the bytes of its frame; after READS_MAX reads
        the rest comes with the next call.

        Raises FrameError on invalid data, EOFError if the peer closed the connection, and
        SentinelError "not-permitted" for data of another process than the one that connected.
        """
        messages: list[tuple[Message, int]] = []
        for _ in range(READS_MAX):
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    1 << 16, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return messages
            except ConnectionError:
                raise EOFError from None
            sender = 0
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    self._fds += array.array("i", content[: len(content) // 4 * 4])
                elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    sender, _, _ = _CREDENTIALS.unpack(content)
            if flags & socket.MSG_CTRUNC or len(self._fds) > FDS_MAX:
                raise FrameError("too many file descriptors")
            if not data:
                if messages:
                    return messages
                raise EOFError
            if sender != self.peer()[0]:
                raise SentinelError(
                    "not-permitted",
                    f"process {sender} sent data on the connection of process {self.peer()[0]}",
                    "each process must connect for itself",
                )
            messages += self._buffer.feed_sized(data)
        return messages

    def take_fds(self, count: int) -> list[int]:
        """The next received file descriptors; the caller owns them.

        Raises FrameError if there are fewer.
        """
        taken: list[int] = []
        try:
            while len(taken) < count:
                taken.append(self._fds.popleft())
        except IndexError:
            for fd in taken:
                close_untrusted(self.peer()[1], fd)
            raise FrameError(f"{count} descriptors expected, {len(taken)} came") from None
        return taken

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one frame. Raises EOFError if the peer is gone or its receive buffer is full."""
        data = encode(message)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except (BlockingIOError, ConnectionError, OSError):
            raise EOFError from None
        if sent != len(data):
            # A partial frame cannot be completed later, so the connection is unusable.
            raise EOFError

    def peer(self) -> tuple[int, int, int]:
        """pid, uid and gid of the peer at connect(), from the kernel (SO_PEERCRED)."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(found)
        return pid, uid, gid

    def peer_pidfd(self) -> int:
        """A new pidfd of the process that called connect(). Raises OSError, also if the kernel is
        older than Linux 6.5."""
        return int.from_bytes(
            self._socket.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4), "little", signed=True
        )

    def hang_up(self) -> None:
        """Shut the connection down, from any thread; its reader gets EOF and closes it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and the received descriptors that were not taken.

        Only the connection's reader may call this: an event loop that still watches the
        descriptor would confuse it with the next socket that gets the same number.
        """
        uid = self.peer()[1]
        while self._fds:
            close_untrusted(uid, self._fds.popleft())
        close_connection(uid, self._socket)
