# SPDX-License-Identifier: Apache-2.0
"""Framed JSON over a Unix stream socket, with file descriptors.

A frame is a 4-byte little-endian length and that many bytes of UTF-8 JSON (an
object). File descriptors are sent as SCM_RIGHTS with the frame's first byte. The
control socket and the shim's socket both use this protocol.
"""

from __future__ import annotations

import array
import contextlib
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sentineld.base.closing import close_untrusted
from sentineld.base.dropping import drop
from sentineld.base.errors import SentinelError

HELLO_BYTES_MAX = 64 << 10
FDS_MAX = 8
SO_PEERPIDFD = 77
"""Number of a socket option of Linux 6.5 or later (asm-generic); Python has no constant for it."""
_SO_PEEK_OFF = 42  # a socket option's number (asm-generic); Python has no constant for it
_CREDENTIALS = struct.Struct("3i")
_SCM_MAX_FD = 253
_ANCILLARY_BYTES = socket.CMSG_SPACE(4 * _SCM_MAX_FD) + socket.CMSG_SPACE(_CREDENTIALS.size)
"""Room for all descriptors that a message can have. If some did not fit, the kernel would close
them in this thread, and closing them can block (dropping.py)."""
READS_MAX = 4
"""Maximum number of 64 KiB reads per call of receive(). The limit keeps one peer from occupying the
event loop."""
MESSAGES_MAX = 32
"""Maximum number of messages per call of receive(), limited for the same reason as READS_MAX."""
_VALUE_BYTES = 64
"""Upper bound on the memory of a decoded value in addition to its text: a list takes 56 bytes, a
string 49 and a number 32."""

Message = dict[str, Any]


class FrameLimits(NamedTuple):
    """Limits of a frame, which also limit the memory of its decoded message."""

    frame_bytes: int
    values: int  # number of commas, opening brackets and opening braces in the frame's text
    objects: int  # number of opening braces; an object can take 100 times the memory of its text


FROM_SHIM = FrameLimits(5 << 20, 400_000, 64)
"""The largest message has the names of a model's tensors: at most 20,000 rows of 243 characters
and 4 values each (sentineld/shim/names.py)."""
REQUEST = FrameLimits(64 << 10, 1000, 16)
ANSWER = FrameLimits(64 << 20, 1 << 30, 1 << 30)
"""These limits are large, because clients trust the daemon."""


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
        """The messages that this data completes. Raises FrameError if a message is not a JSON
        object or exceeds the limits."""
        return [message for message, _ in self.feed_sized(data)]

    def feed_sized(self, data: bytes) -> list[tuple[Message, int]]:
        """Like feed(), but returns each message with an estimate of its bytes in memory; see
        take()."""
        self.add(data)
        messages: list[tuple[Message, int]] = []
        while (taken := self.take()) is not None:
            messages.append(taken)
        return messages

    def add(self, data: bytes) -> None:
        """Append received data; take() decodes it."""
        self._bytes += data

    @property
    def frame_bytes(self) -> int:
        """Length of the first frame that take() has not returned; 0: unknown."""
        return 4 + int.from_bytes(self._bytes[:4], "little") if len(self._bytes) >= 4 else 0

    @property
    def whole(self) -> bool:
        """Whether the next take() returns a message."""
        return 0 < self.frame_bytes <= len(self._bytes)

    def take(self) -> tuple[Message, int] | None:
        """The next message, and an estimate of its bytes in memory; None if the message has not
        arrived completely. Raises FrameError if it is not a JSON object or exceeds the limits."""
        if self.frame_bytes > 4 + self._limits.frame_bytes:
            raise FrameError(f"a frame of {self.frame_bytes} bytes exceeds the limit")
        if not self.whole:
            return None
        length = self.frame_bytes
        body = bytes(self._bytes[4:length])
        del self._bytes[:length]
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
        # A single character beyond U+FFFF makes Python store each character of a string in 4 bytes.
        wide = 4 if b"\\u" in body or not body.isascii() else 1
        return message, wide * length + _VALUE_BYTES * values


class FrameSocket:
    """A non-blocking stream socket that carries frames and file descriptors."""

    def __init__(self, connection: socket.socket, limits: FrameLimits = FROM_SHIM) -> None:
        """limits: limits of received frames."""
        connection.setblocking(False)
        # The listening socket must have this option, too. Otherwise the kernel would not name the
        # sender of data that arrived before this call.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket = connection
        # Without this option, the kernel would discard out-of-band data and close the descriptors
        # that came with it. It would close them in this thread, which can block.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self._buffer = FrameBuffer(limits)
        self._peeked: bytearray | None = None
        self._fds: deque[int] = deque()  # one thread appends, another thread takes
        self.hung_up = False
        self.may_read: Callable[[int], bool] = lambda frame_bytes: True
        """Called before each read, with the length of the incomplete frame (0: unknown). If it
        returns False, receive() reads no further and returns the complete messages."""

    def fileno(self) -> int:
        """The socket's descriptor, for event loops."""
        return self._socket.fileno()

    def peek_frame(self) -> bool:
        """Whether the connection's first frame has arrived completely.

        The frame and its descriptors stay in the socket.

        Raises FrameError if the frame exceeds HELLO_BYTES_MAX, EOFError if the peer closed the
        connection.
        """
        if self._peeked is None:
            self._peeked = bytearray()
            # With this option, each peek continues where the previous one ended. Without it, every
            # peek would end at the first data that carries descriptors.
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
        """The messages that have arrived, each with an estimate of its bytes in memory.

        A call does not wait for data. It ends after at most READS_MAX reads or MESSAGES_MAX
        messages. The next call returns the remaining messages; see has_message().

        Raises FrameError on invalid data, EOFError if the peer closed the connection, or
        SentinelError "not-permitted" if data was sent by a process other than the one that
        connected.
        """
        messages: list[tuple[Message, int]] = []
        for _ in range(READS_MAX):
            while len(messages) < MESSAGES_MAX and (taken := self._buffer.take()) is not None:
                messages.append(taken)
            if self._buffer.whole or not self.may_read(self._buffer.frame_bytes):
                return messages
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
            self._buffer.add(data)
        return messages

    def has_message(self) -> bool:
        """Whether receive() would return a message without a read."""
        return self._buffer.whole

    def take_fds(self, count: int) -> list[int]:
        """The next received file descriptors; the caller owns them.

        Raises FrameError if fewer than `count` were received.
        """
        taken: list[int] = []
        try:
            while len(taken) < count:
                taken.append(self._fds.popleft())
        except IndexError:
            for fd in taken:
                close_untrusted(self.peer()[1], fd)
            raise FrameError(f"{count} descriptors expected, {len(taken)} received") from None
        return taken

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one frame. Raises EOFError if the peer is gone or its receive buffer is full."""
        data = encode(message)
        try:
            sent = self.send_some(data, fds)
        except BlockingIOError:
            raise EOFError from None
        if sent != len(data):
            # A partial frame cannot be completed later, so the connection is unusable.
            raise EOFError

    def send_some(self, data: bytes | memoryview, fds: Sequence[int] = ()) -> int:
        """Send the descriptors and as much of the data as possible; returns the number of bytes
        sent.

        Raises BlockingIOError if the peer's receive buffer is full, EOFError if the peer is gone.
        """
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            return self._socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise
        except OSError:
            raise EOFError from None

    def peer(self) -> tuple[int, int, int]:
        """pid, uid and gid of the peer at connect(), from the kernel (SO_PEERCRED)."""
        found = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(found)
        return pid, uid, gid

    def peer_pidfd(self) -> int:
        """A new pidfd of the process that called connect(). Raises OSError, for example if the
        kernel is older than Linux 6.5."""
        return int.from_bytes(
            self._socket.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD, 4), "little", signed=True
        )

    def hang_up(self) -> None:
        """Shut the connection down. The thread that reads from it then gets EOF and closes the
        connection. May be called from any thread."""
        self.hung_up = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket and the received descriptors that were not taken.

        Only the connection's reader may call this: an event loop that still watches the
        descriptor's number would mistake the next socket with that number for this one.
        """
        uid = self.peer()[1]
        while self._fds:
            close_untrusted(uid, self._fds.popleft())
        drop(self._socket)
