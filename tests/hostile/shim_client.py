# SPDX-License-Identifier: Apache-2.0
"""A client that can send anything to the shims' socket and needs no torch."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sentineld.model import protocol
from sentineld.model.records import RECORD_DTYPE, Records

HEADER_BYTES = 4096
HEAP = 0x10_0000_0000
HEAP_BYTES = 1 << 30
Message = dict[str, Any]


def frame(message: Message) -> bytes:
    """A message in the protocol's format: a frame that contains JSON."""
    return framed(json.dumps(message).encode())


def framed(body: bytes) -> bytes:
    """A frame: the number of bytes (u32, little-endian), then these bytes, not necessarily JSON."""
    return struct.pack("<I", len(body)) + body


def memfd(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    """A memfd of this size in bytes, with these seals."""
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Segment:
    """The control segment of a training: memory that it shares with the daemon, with words and a
    ring of records."""

    def __init__(self, records: int = 64, **words: int) -> None:
        size = HEADER_BYTES + max(records * RECORD_DTYPE.itemsize, HEADER_BYTES)
        self.fd = memfd(size)
        self._map = mmap.mmap(self.fd, size)
        self.header = np.frombuffer(self._map, protocol.CONTROL_DTYPE, 1)
        self._ring = np.frombuffer(self._map, RECORD_DTYPE, records, HEADER_BYTES)
        self.set(
            magic=protocol.CONTROL_MAGIC,
            version=protocol.SHIM_VERSION,
            pid=os.getpid(),
            ring_offset=HEADER_BYTES,
            ring_records=records,
            heap_base=HEAP,
            heap_bytes=HEAP_BYTES,
        )
        self.set(**words)

    def word(self, name: str) -> int:
        """A control word."""
        return int(self.header[name][0])

    def set(self, **words: int) -> None:
        """Write control words."""
        for name, value in words.items():
            self.header[name] = value

    def put(self, rows: Records) -> bool:
        """Append records to the ring; returns whether it had room for them."""
        head, records = self.word("ring_head"), len(self._ring)
        if head - self.word("ring_tail") + len(rows) > records:
            self.set(ring_lost=(self.word("ring_lost") + len(rows)) % (1 << 64))
            return False
        # The attacks can set the head to any value up to 2^64 - 1. So the indices are computed as
        # Python's integers, which cannot overflow.
        self._ring[[(head + number) % records for number in range(len(rows))]] = rows
        self.set(ring_head=(head + len(rows)) % (1 << 64))
        return True

    def close(self) -> None:
        """Close the descriptor; the mapping stays until Python collects this object."""
        os.close(self.fd)


class ShimClient:
    """A connection to the shims' socket. It sends nothing unless one of its methods is called."""

    def __init__(
        self, path: Path | None, connected: socket.socket | None = None, wait: bool = True
    ) -> None:
        """Connect to the path, or take over the connection `connected`.

        wait: whether connecting and sending may wait for the daemon.
        """
        self.socket = connected or socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # With a time-out, connect() would fail while the daemon's backlog is full.
        self.socket.setblocking(wait)
        if path is not None:
            self.socket.connect(str(path))
        self.socket.settimeout(240 if wait else 0)
        self._received = b""
        self._descriptors: list[int] = []

    @classmethod
    def adopt(cls, connection: socket.socket) -> ShimClient:
        """A client on a connection that another process has made."""
        return cls(None, connection)

    def raw(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes; the descriptors go with the first byte."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sent = self.socket.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        if sent < len(data):
            self.socket.sendall(data[sent:])

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message with descriptors."""
        self.raw(frame(message), fds)

    def hello(self, fds: Sequence[int], **fields: Any) -> None:
        """Send a hello with these descriptors."""
        hello = {"type": "hello", "version": protocol.SHIM_VERSION, "pid": os.getpid()}
        self.send({**hello, "threads": 1, **fields}, fds)

    def register(self, segment: Segment, **fields: Any) -> int:
        """Send a valid hello; returns the eventfd, which the caller closes."""
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.hello([segment.fd, event], **fields)
        return event

    def receive(self, wait_s: float = 0.0) -> list[Message]:
        """Return the next messages, or an empty list if none comes within wait_s.

        Raises EOFError if the daemon has closed the connection.
        """
        deadline_s = time.monotonic() + wait_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            if not select.select([self.socket], [], [], left_s)[0]:
                return []
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 8)
            except ConnectionError:
                raise EOFError from None
            if not data:
                raise EOFError
            self._descriptors += fds
            self._received += data
            if messages := self._complete():
                return messages

    def take_descriptor(self) -> int:
        """The next descriptor that the daemon has sent; the caller closes it."""
        return self._descriptors.pop(0)

    def answer(self, wait_s: float = 240.0) -> Message | None:
        """Return the next message, which answers a hello: welcome or refused.

        Returns None if the daemon closes the connection instead.
        """
        try:
            messages = self.receive(wait_s)
        except EOFError:
            return None
        assert messages, f"the daemon did not answer within {wait_s} s"
        return messages[0]

    def closed(self, wait_s: float = 240.0) -> bool:
        """Whether the daemon closes the connection within wait_s."""
        deadline_s = time.monotonic() + wait_s
        with contextlib.suppress(EOFError):
            while (left_s := deadline_s - time.monotonic()) > 0:
                self.receive(left_s)
            return False
        return True

    def close(self) -> None:
        """Hang up."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
        self.socket.close()

    def _complete(self) -> list[Message]:
        messages = []
        while len(self._received) >= 4:
            length = int.from_bytes(self._received[:4], "little")
            if len(self._received) < 4 + length:
                break
            messages.append(json.loads(self._received[4 : 4 + length]))
            self._received = self._received[4 + length :]
        return messages


def registered(path: Path) -> tuple[ShimClient, Segment]:
    """Register this process with a valid segment; raises AssertionError if the daemon refuses."""
    client, segment = ShimClient(path), Segment()
    os.close(client.register(segment))
    answer = client.answer()
    assert answer is not None, "the daemon closed the connection"
    assert answer["type"] == "welcome", answer
    return client, segment
