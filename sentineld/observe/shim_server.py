# SPDX-License-Identifier: Apache-2.0
"""The socket at which training processes register.

Any user may connect, so everything that a connection can hold or cause is limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from sentineld.base.closing import too_many
from sentineld.base.errors import SentinelError
from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.control.listener import Limits, Listener
from sentineld.observe.shim_link import ShimLink

log = logging.getLogger(__name__)

HELLO_S = 10.0
"""Time for a hello. A shim sends it right after it connects."""
HELLO_CHECK_S = 0.05
"""Pause until the rest of a partial hello is looked for. It stays in the socket's buffer, so the
socket stays readable."""
STRANGERS = Limits(of_user=32, total=256)
"""Connections without a hello."""

DESCRIPTORS_RESERVED = 96
"""For the daemon itself: sockets, eBPF maps, connections of sentinelctl and metrics readers."""
DESCRIPTORS_PER_SESSION = 16
"""A managed session has about ten; planning processes and received descriptors take the rest."""

Receiver = Callable[[Message | None, int], bool]
"""Takes a link's messages, each with the bytes of its frame, and None at the end. Returns whether
to read on; if not, the link's on_room() is called, from any thread, when there is room for more."""


def session_limits() -> Limits:
    """Numbers of sessions for which the daemon's limit of descriptors (RLIMIT_NOFILE) suffices.

    One user can have half of them, so that others can always register.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    total = max(2, (soft - DESCRIPTORS_RESERVED) // DESCRIPTORS_PER_SESSION)
    return Limits(total // 2, total)


class _Registered(NamedTuple):
    link: ShimLink
    receiver: Receiver


class _Connection:
    """A connection of a shim; registered: once its hello was accepted."""

    def __init__(self, frames: FrameSocket, uid: int) -> None:
        self.frames = frames
        self.uid = uid
        self.registered: _Registered | None = None
        self.timer: asyncio.TimerHandle | None = None


class ShimServer:
    """Accepts shims, turns their hello into a ShimLink and passes their messages on."""

    def __init__(
        self,
        listener: socket.socket,
        on_hello: Callable[[ShimLink], Receiver],
        sessions: Limits | None = None,
    ) -> None:
        """on_hello: returns the receiver of the link's messages.
        sessions: limits of registered connections; None: session_limits()."""
        self._on_hello = on_hello
        self._sessions = sessions or session_limits()
        self._registered: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._listener = Listener(listener, STRANGERS, self._accepted, _refuse_socket)

    def close(self) -> None:
        """Take no new shims."""
        self._listener.close()

    # A connection without a hello.

    def _accepted(self, connection: socket.socket, uid: int) -> None:
        one = _Connection(FrameSocket(connection), uid)
        one.timer = self._loop.call_later(HELLO_S, self._expire, one)
        self._loop.add_reader(one.frames.fileno(), self._read_hello, one)

    def _expire(self, one: _Connection) -> None:
        self._close(one, FrameError(f"no hello came within {HELLO_S:g} s"))

    def _read_hello(self, one: _Connection) -> None:
        """Receive the hello once it is whole: until then no descriptor is accepted."""
        try:
            if not one.frames.peek_frame():
                self._loop.remove_reader(one.frames.fileno())
                self._loop.call_later(HELLO_CHECK_S, self._watch_hello, one)
                return
            (hello, _), *others = one.frames.receive_sized()
            if hello.get("type") != "hello":
                raise FrameError("the first message is not a hello")
            self._register(one, hello)
        except (EOFError, FrameError, SentinelError) as error:
            self._close(one, error)
        else:
            self._pass_on(one, others)

    def _watch_hello(self, one: _Connection) -> None:
        if one.frames.fileno() >= 0:
            self._loop.add_reader(one.frames.fileno(), self._read_hello, one)

    def _register(self, one: _Connection, hello: Message) -> None:
        """Raises SentinelError."""
        self._require_room(one.uid)
        link = ShimLink(one.frames, hello)
        link.on_room = lambda: self._resume(one)
        one.registered = _Registered(link, self._on_hello(link))
        self._registered[one.uid] += 1
        self._listener.release(one.uid)
        assert one.timer is not None
        one.timer.cancel()
        self._loop.add_reader(one.frames.fileno(), self._read, one)

    def _require_room(self, uid: int) -> None:
        """Raise SentinelError "busy" if the user, or the daemon, has too much open already."""
        if self._registered[uid] >= self._sessions.of_user:
            problem = (
                f"user {uid} has {self._sessions.of_user} registered processes, which is the limit"
            )
        elif self._registered.total() >= self._sessions.total:
            problem = f"there are {self._sessions.total} registered processes, which is the limit"
        elif too_many(uid):
            problem = f"too many descriptors that user {uid} sent are still being closed"
        else:
            return
        raise SentinelError(
            "busy", problem, "end other trainings, or raise LimitNOFILE of the daemon's unit"
        )

    # A registered connection.

    def _read(self, one: _Connection) -> None:
        try:
            messages = one.frames.receive_sized()
        except (EOFError, FrameError, SentinelError) as error:
            self._close(one, error)
        else:
            self._pass_on(one, messages)

    def _pass_on(self, one: _Connection, messages: list[tuple[Message, int]]) -> None:
        assert one.registered is not None
        go_on = [one.registered.receiver(message, size_bytes) for message, size_bytes in messages]
        if not all(go_on):
            self._loop.remove_reader(one.frames.fileno())

    def _resume(self, one: _Connection) -> None:
        """Read a connection again; called from a session's thread."""

        def resume() -> None:
            if one.frames.fileno() >= 0 and one.registered is not None:
                self._loop.add_reader(one.frames.fileno(), self._read, one)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(resume)

    def _close(self, one: _Connection, error: Exception) -> None:
        if one.frames.fileno() < 0:
            return
        if isinstance(error, SentinelError) and one.registered is None:
            _refuse(one.frames, error)
        if not isinstance(error, EOFError):
            log.warning(
                "closing the shim connection of process %d: %s",
                one.frames.peer()[0],
                error,
                extra={"uid": one.uid},
            )
        self._loop.remove_reader(one.frames.fileno())
        one.frames.close()
        if one.timer is not None:
            one.timer.cancel()
        if one.registered is None:
            self._listener.release(one.uid)
            return
        self._registered[one.uid] -= 1
        if not self._registered[one.uid]:
            del self._registered[one.uid]
        one.registered.receiver(None, 0)


def _refuse(frames: FrameSocket, error: SentinelError) -> None:
    """Send the reason, so that the training can print it for a user without our log."""
    with contextlib.suppress(EOFError):  # the process is gone already
        frames.send({"type": "refused", "error": str(error)})


def _refuse_socket(connection: socket.socket, error: SentinelError) -> None:
    _refuse(FrameSocket(connection), error)
