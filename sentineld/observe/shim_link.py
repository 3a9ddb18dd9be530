# SPDX-License-Identifier: Apache-2.0
"""The daemon's connection to one shim: socket, control segment and eventfd."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.model import protocol
from sentineld.model.records import OP_ACCESS_DTYPE, OpAccesses, TensorName
from sentineld.observe.control_segment import ControlSegment
from sentineld.observe.residency_segment import ResidencySegment

HELLO_FDS = 2  # control memfd, eventfd
EVENTFD = "anon_inode:[eventfd]"
OP_ACCESSES_MAX = 1 << 22
NAMES_MAX = 1 << 17
NAME_CHARACTERS_MAX = 256


class ShimLink:
    """A shim that has sent its hello. One thread uses the socket; any thread may set words."""

    def __init__(self, connection: FrameSocket, hello: Message) -> None:
        """Take over the connection and the descriptors of the hello. Raises SentinelError."""
        self.connection = connection
        self.pid = connection.peer()[0]
        self.uid = connection.peer()[1]
        self.hello = hello
        if hello.get("version") != protocol.SHIM_VERSION:
            raise SentinelError(
                "protocol-mismatch",
                f"process {self.pid} speaks shim protocol {text_of(hello.get('version'), 20)}, "
                f"not {protocol.SHIM_VERSION}",
                "run the training with the shim that came with this daemon",
            )
        try:
            control_fd, self.event_fd = connection.take_fds(HELLO_FDS)
        except FrameError as error:
            raise SentinelError(
                "protocol-mismatch", f"the hello's file descriptors are missing: {error}"
            ) from None
        self.residency: ResidencySegment | None = None
        """The node of each page on emulated tiers, once a layout for them is live."""
        try:
            self.segment = ControlSegment(control_fd)
            if os.readlink(f"/proc/self/fd/{self.event_fd}") != EVENTFD:
                # Reading any other file may fail or block.
                raise SentinelError("protocol-mismatch", "the hello has no eventfd")
            self.take_residency(hello)
        except BaseException:
            os.close(self.event_fd)
            raise
        finally:
            os.close(control_fd)
        os.set_blocking(self.event_fd, False)
        self._flags = 0
        self._flags_lock = threading.Lock()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, which the shim reads when its next step begins. Raises EOFError."""
        self.connection.send(message, fds)
        self.set_flags(on=protocol.Flag.MESSAGE)

    def take_residency(self, message: Message) -> None:
        """Map the residency segment if the message has one. Raises SentinelError."""
        if message.get("residency") is not True:
            return
        try:
            (fd,) = self.connection.take_fds(1)
        except FrameError as error:
            raise SentinelError(
                "protocol-mismatch", f"residency message without a descriptor: {error}"
            ) from None
        try:
            self.residency = ResidencySegment(fd)
        finally:
            os.close(fd)

    def take_accesses(self, message: Message) -> OpAccesses:
        """The operators' accesses of a message "accesses", limited in number.

        Raises FrameError if the message has no file.
        """
        (fd,) = self.connection.take_fds(1)
        try:
            rows = min(os.fstat(fd).st_size // OP_ACCESS_DTYPE.itemsize, OP_ACCESSES_MAX)
            # pread(), because the file position is shared with the shim, which wrote to the end.
            data = os.pread(fd, rows * OP_ACCESS_DTYPE.itemsize, 0) if rows else b""
        except OSError as error:
            raise FrameError(f"its file can't be read: {error.strerror}") from None
        finally:
            os.close(fd)
        whole = len(data) // OP_ACCESS_DTYPE.itemsize * OP_ACCESS_DTYPE.itemsize
        step = message.get("step")
        return OpAccesses(
            step=step if type(step) is int else -1,
            rows=np.frombuffer(data[:whole], OP_ACCESS_DTYPE),
            names=_names(message.get("names")),
        )

    def set_flags(self, on: int = 0, off: int = 0) -> None:
        """Clear, then set bits of the flag word; any thread may call this."""
        with self._flags_lock:
            self._flags = (self._flags & ~off) | on
            self.segment.set_flags(self._flags)

    def beat(self) -> None:
        """Refresh the heartbeat."""
        self.segment.set_heartbeat(time.monotonic_ns())

    def clear_event(self) -> None:
        """Empty the eventfd."""
        try:
            os.eventfd_read(self.event_fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Withdraw all requests to the shim and hang up; the connection's reader closes it."""
        with self._flags_lock:
            self._flags = 0
            self.segment.set_flags(0)
        self.segment.set_heartbeat(0)
        os.close(self.event_fd)
        self.connection.hang_up()


def _names(value: object) -> dict[int, TensorName]:
    """Names by address from [address, role, name] triples; skips malformed entries."""
    if not isinstance(value, list):
        return {}
    return {
        entry[0]: TensorName(*(text_of(part, NAME_CHARACTERS_MAX) for part in entry[1:]))
        for entry in value[:NAMES_MAX]
        if isinstance(entry, list) and len(entry) == 3 and type(entry[0]) is int
    }
