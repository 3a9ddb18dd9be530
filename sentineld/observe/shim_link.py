# SPDX-License-Identifier: Apache-2.0
"""The daemon's connection to one shim: socket, control segment and eventfd."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sentineld.base.closing import too_many
from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.model import job, protocol
from sentineld.model.records import OP_ACCESS_DTYPE, OpAccesses, TensorName
from sentineld.observe.control_segment import ControlSegment
from sentineld.observe.paging_segment import PagingSegment
from sentineld.observe.peer import Peer
from sentineld.observe.received import EVENTFD, close_received, link, seals
from sentineld.observe.residency_segment import ResidencySegment

HELLO_FDS = 2  # control memfd, eventfd
OP_ACCESSES_MAX = 1 << 19
"""Maximum number of operator accesses (rows) in one message. This many rows take 13 MiB. The access
step of a model with 10,000 tensors has about 50,000 rows. If a message has more rows, none is read:
the rows are sorted by time, so the first ones would look like a step without its end."""
NAMES_MAX = 1 << 17
NAME_CHARACTERS_MAX = 256


class ShimLink:
    """The connection to a shim that has sent its hello, which is its first message.

    The server's thread reads the socket, and the session's thread sends. Any thread may set words
    of the control segment.
    """

    def __init__(self, connection: FrameSocket, hello: Message) -> None:
        """Take over the connection and the descriptors of the hello.

        Raises SentinelError; its code is "busy" if the daemon has no free descriptor or too little
        memory.
        """
        self.connection = connection
        self.pid, self.uid, _ = connection.peer()
        self.hello = hello
        self.job = job.of_message(hello.get("job"))
        """The job of the process and its rank in it; None: the process belongs to no job."""
        if hello.get("version") != protocol.SHIM_VERSION:
            raise SentinelError(
                "protocol-mismatch",
                f"process {self.pid} speaks shim protocol {text_of(hello.get('version'), 20)}, "
                f"not {protocol.SHIM_VERSION}",
                "run the training with the shim that came with this daemon",
            )
        self.on_room: Callable[[], None] = lambda: None
        """Makes the server read the connection again; the server sets this function. The session's
        thread calls it when the session has room for messages again, and close() calls it."""
        self.on_handled: Callable[[int], None] = lambda size_bytes: None
        """The session's thread calls this function with the estimated bytes of each handled
        message; the server sets it."""
        self.residency: ResidencySegment | None = None
        """The residency segment, which has the node of each page on emulated or paged tiers; None
        until the process has sent it."""
        self._wake_fd: int | None = None
        self._flags = 0
        self._flags_lock = threading.Lock()
        with contextlib.ExitStack() as failed:
            try:
                self.peer = Peer.of(connection)
                failed.callback(self.peer.close)
                control_fd, self.event_fd = self._take_fds(HELLO_FDS, "hello")
                failed.callback(lambda: close_received(self.uid, self.event_fd))
                with self._closing(control_fd):
                    self.segment = ControlSegment(control_fd)
                failed.callback(self.segment.close)
                if link(self.event_fd) != EVENTFD:
                    # Reading any other file may fail or block.
                    raise SentinelError("protocol-mismatch", "the hello has no eventfd")
                self.take_residency(hello)
            except OSError as error:
                raise SentinelError(
                    "busy",
                    f"process {self.pid} can't be registered: {error.strerror}",
                    "raise LimitNOFILE and MemoryMax of the daemon's unit, or end other trainings",
                ) from None
            failed.pop_all()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, which the shim reads when its next step begins. Raises EOFError if the
        shim has hung up or its receive buffer is full."""
        self.connection.send(message, fds)
        self.set_flags(on=protocol.Flag.MESSAGE)

    @property
    def paging(self) -> PagingSegment | None:
        """The memory shared with the process's pager; None if the process has no pager."""
        return self.residency.paging if self.residency is not None else None

    def wake_fd(self) -> int:
        """An eventfd that wakes the process's pager after moves have been queued. The process gets
        the descriptor in each message that has paging settings. Raises OSError if the daemon has
        no free descriptor."""
        if self._wake_fd is None:
            self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return self._wake_fd

    def take_residency(self, message: Message) -> None:
        """Map the residency segment if the message has one. Raises SentinelError or OSError."""
        if message.get("residency") is not True:
            return
        (fd,) = self._take_fds(1, "residency message")
        with self._closing(fd):
            self.residency = ResidencySegment(fd)

    def take_accesses(self, message: Message) -> OpAccesses:
        """The operators' accesses in a message of type "accesses"; without rows if there are more
        than OP_ACCESSES_MAX.

        Raises FrameError if the message has no memfd.
        """
        (fd,) = self.connection.take_fds(1)
        with self._closing(fd):
            if seals(fd) is None:
                raise FrameError("its file is not a memfd")
            rows = os.fstat(fd).st_size // OP_ACCESS_DTYPE.itemsize
            refused = rows if rows > OP_ACCESSES_MAX else 0
            rows -= refused
            # Use pread(), because the file position is shared with the shim and is at the file's
            # end.
            data = os.pread(fd, rows * OP_ACCESS_DTYPE.itemsize, 0) if rows else b""
        whole = len(data) // OP_ACCESS_DTYPE.itemsize * OP_ACCESS_DTYPE.itemsize
        step = message.get("step")
        return OpAccesses(
            step=step if type(step) is int else -1,
            rows=np.frombuffer(data[:whole], OP_ACCESS_DTYPE),
            names=_names(message.get("names")),
            refused=refused,
        )

    def set_flags(self, on: int = 0, off: int = 0) -> None:
        """Clear the bits `off` and set the bits `on` of the flag word; any thread may call this."""
        with self._flags_lock:
            self._flags = (self._flags & ~off) | on
            self.segment.set_flags(self._flags)

    def beat(self) -> None:
        """Refresh the heartbeat."""
        self.segment.set_heartbeat(time.monotonic_ns())

    def clear_event(self) -> None:
        """Reset the eventfd to 0; does not block, whatever flags the process sets on it."""
        with contextlib.suppress(BlockingIOError):
            # Offset -1 means no offset: an eventfd is not seekable.
            os.preadv(self.event_fd, [bytearray(8)], -1, os.RWF_NOWAIT)

    def close(self) -> None:
        """Withdraw all requests to the shim, unmap the shared memory and hang up; the server closes
        the connection. The control words may still be read and set, but the shim does not see
        changes."""
        with self._flags_lock:
            self._flags = 0
            self.segment.set_flags(0)
        self.segment.set_heartbeat(0)
        self.segment.close()
        if self.residency is not None:
            self.residency.close()
        os.close(self.event_fd)
        if self._wake_fd is not None:
            os.close(self._wake_fd)
            self._wake_fd = None
        self.peer.close()
        self.connection.hang_up()
        self.on_room()  # so that the server reads the EOF, even if it had stopped reading

    def _take_fds(self, count: int, what: str) -> list[int]:
        try:
            return self.connection.take_fds(count)
        except FrameError as error:
            raise SentinelError(
                "protocol-mismatch", f"the {what}'s file descriptors are missing: {error}"
            ) from None

    @contextlib.contextmanager
    def _closing(self, fd: int) -> Iterator[None]:
        try:
            yield
        finally:
            close_received(self.uid, fd)
            if too_many(self.uid):
                self.connection.hang_up()


def _names(value: object) -> dict[int, TensorName]:
    """Address -> name, from [address, role, name] triples; skips malformed triples."""
    if not isinstance(value, list):
        return {}
    return {
        entry[0]: TensorName(*(text_of(part, NAME_CHARACTERS_MAX) for part in entry[1:]))
        for entry in value[:NAMES_MAX]
        if isinstance(entry, list) and len(entry) == 3 and type(entry[0]) is int
    }
