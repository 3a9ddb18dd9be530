# SPDX-License-Identifier: Apache-2.0
"""The socket at which training processes register.

Every user can connect. Therefore this module limits how many descriptors, how much memory and how
much of the event loop's time the connections of each user take.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable

from sentineld.base.closing import too_many
from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.control.frames import FrameError, FrameSocket, Message
from sentineld.control.listener import Limits, Listener
from sentineld.control.pace import Pace
from sentineld.observe.message_memory import Account, MessageMemory
from sentineld.observe.shim_link import ShimLink

log = logging.getLogger(__name__)

HELLO_S = 10.0
"""Time limit for the hello, which a shim sends right after it connects."""
HELLO_CHECK_S = 0.05
"""Pause before an incomplete hello is checked again. The hello stays in the socket's buffer, so the
socket stays readable, and without a pause the event loop would spin."""
STRANGERS = Limits(of_user=32, of_root=128, total=256)
"""Limits on connections that have not sent a hello."""

DESCRIPTORS_RESERVED = 96
"""Number of descriptors that sessions cannot use: the daemon needs them for sockets, eBPF maps, and
connections of sentinelctl and of metrics readers."""
DESCRIPTORS_PER_SESSION = 16
"""A managed session has about ten descriptors. The rest is for planning processes and for
descriptors that the daemon receives."""

FRAME_S = 10.0
"""Time in which a large frame must become complete if other connections of the same user wait for
memory."""
STARVED_CHECK_S = 1.0
Receiver = Callable[[Message | None, int], bool]
"""Receives each message of a link with an estimate of the message's bytes in memory, and None after
the last message. Returns whether to continue reading. If not, the receiver calls the link's
on_room(), from any thread, as soon as reading can continue. The receiver also calls the link's
on_handled(), from any thread, with this estimate for each message that it has handled."""


def session_limits() -> Limits:
    """Limits on the number of sessions, so that the daemon's descriptors (RLIMIT_NOFILE) suffice.

    Root can have a third of the sessions, and all other users together two thirds. A single user
    can have at most one third, so that other users can still register.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    third = max(2, (soft - DESCRIPTORS_RESERVED) // DESCRIPTORS_PER_SESSION // 3)
    return Limits(of_user=third, of_root=third, total=2 * third)


class _Connection:
    """A connection of a shim."""

    def __init__(self, frames: FrameSocket, uid: int) -> None:
        self.frames = frames
        self.uid = uid
        self.account = Account(uid)
        self.receiver: Receiver | None = None  # None until the hello is accepted
        self.hello_timer: asyncio.TimerHandle | None = None
        self.full = False  # its session has too many unhandled messages
        self.starved = False  # its user's messages take too much memory
        self.reads_again = False  # _read() is scheduled in the event loop


class ShimServer:
    """Accepts connections of shims, creates a ShimLink from each shim's hello, and passes the
    shim's messages to the link's receiver."""

    def __init__(
        self,
        listener: socket.socket,
        on_hello: Callable[[ShimLink], Receiver],
        sessions: Limits | None = None,
    ) -> None:
        """on_hello: returns the receiver of the link's messages, or raises SentinelError.
        sessions: limits on registered connections; None: session_limits()."""
        self._on_hello = on_hello
        self._sessions = sessions or session_limits()
        self._counts: Counter[int] = Counter()  # registered connections, by user ID
        self._registered: set[_Connection] = set()
        self._evicting: set[int] = set()
        self._pace = Pace()
        self._loop = asyncio.get_running_loop()
        self._memory = MessageMemory(lambda uid: self._call_soon(lambda: self._feed(uid)))
        self._listener = Listener(listener, STRANGERS, self._accepted, _refuse_socket)

    def close(self) -> None:
        """Accept no new connections."""
        self._listener.close()

    # Connections that have not sent a hello yet.

    def _accepted(self, connection: socket.socket, uid: int) -> None:
        one = _Connection(FrameSocket(connection), uid)
        one.frames.may_read = lambda frame_bytes: self._may_read(one, frame_bytes)
        one.hello_timer = self._loop.call_later(HELLO_S, self._expire, one)
        self._loop.add_reader(one.frames.fileno(), self._read_hello, one)

    def _expire(self, one: _Connection) -> None:
        self._close(one, FrameError(f"no hello came within {HELLO_S:g} s"))

    def _read_hello(self, one: _Connection) -> None:
        """Receive the hello as soon as all of it has arrived. Before that, no file descriptor is
        received."""
        self._loop.remove_reader(one.frames.fileno())
        one.starved = False
        began_s = time.thread_time()
        try:
            # The limit on a user's share of the daemon's time also applies before the hello.
            rest_s = self._pace.rest_s(one.uid)
            ready = rest_s <= 0 and one.frames.peek_frame()
            messages = one.frames.receive_sized() if ready else []
            if not messages:
                self._loop.call_later(max(HELLO_CHECK_S, rest_s), self._watch_hello, one)
                return
            (hello, _), *others = messages
            if hello.get("type") != "hello":
                raise FrameError("the first message is not a hello")
            self._register(one, hello)
        except Exception as error:
            self._close(one, error)
        else:
            self._pass_on(one, others)
            self._watch(one)
        finally:
            self._pace.charge(one.uid, time.thread_time() - began_s)

    def _watch_hello(self, one: _Connection) -> None:
        if one.frames.fileno() >= 0:
            self._loop.add_reader(one.frames.fileno(), self._read_hello, one)

    def _register(self, one: _Connection, hello: Message) -> None:
        """Create the link and get its receiver. Raises SentinelError if the hello is refused."""
        problem = self._sessions.problem(self._counts, one.uid, "registered processes")
        if problem:
            raise SentinelError(
                "busy", problem, "end other trainings, or raise LimitNOFILE of the daemon's unit"
            )
        link = ShimLink(one.frames, hello)
        link.on_room = lambda: self._call_soon(lambda: self._empty(one))
        link.on_handled = lambda size_bytes: self._memory.handled(one.account, size_bytes)
        try:
            one.receiver = self._on_hello(link)
        except BaseException as error:
            if isinstance(error, SentinelError):
                _refuse(one.frames, error)
            link.close()
            raise
        self._registered.add(one)
        self._counts[one.uid] += 1
        self._listener.release(one.uid)
        assert one.hello_timer is not None
        one.hello_timer.cancel()

    # Registered connections.

    def _watch(self, one: _Connection) -> None:
        """Read the connection when there is something to read, unless `full` or `starved` is set;
        see _Connection."""
        if one.frames.fileno() < 0 or one.full or one.starved:
            return
        self._loop.add_reader(one.frames.fileno(), self._read, one)
        if one.frames.has_message() or one.frames.hung_up:
            self._read_soon(one)

    def _read_soon(self, one: _Connection) -> None:
        def read() -> None:
            one.reads_again = False
            self._read(one)

        if not one.reads_again:
            one.reads_again = True
            self._loop.call_soon(read)

    def _read(self, one: _Connection) -> None:
        if one.frames.fileno() < 0:
            return
        if not one.frames.hung_up and (rest_s := self._pace.rest_s(one.uid)) > 0:
            self._loop.remove_reader(one.frames.fileno())
            self._loop.call_later(rest_s, self._watch, one)
            return
        began_s = time.thread_time()
        try:
            if one.frames.hung_up:
                raise EOFError
            if too_many(one.uid):
                raise FrameError("too many descriptors of its user are still being closed")
            self._pass_on(one, one.frames.receive_sized())
        except Exception as error:
            self._close(one, error)
        else:
            if one.full or one.starved:
                self._loop.remove_reader(one.frames.fileno())
            elif one.frames.has_message():
                self._read_soon(one)
        self._pace.charge(one.uid, time.thread_time() - began_s)

    def _pass_on(self, one: _Connection, messages: list[tuple[Message, int]]) -> None:
        assert one.receiver is not None
        for message, size_bytes in messages:
            self._memory.received(one.account, size_bytes)
            if not one.receiver(message, size_bytes):
                one.full = True

    def _empty(self, one: _Connection) -> None:
        """Continue reading, because the session has room for messages again or has hung up."""
        one.full = False
        if one.frames.hung_up:
            one.starved = False
        self._watch(one)

    def _may_read(self, one: _Connection, frame_bytes: int) -> bool:
        if self._memory.may_read(one.account, frame_bytes):
            return True
        one.starved = True
        if one.uid not in self._evicting:
            self._evicting.add(one.uid)
            self._loop.call_later(STARVED_CHECK_S, self._evict, one.uid)
        return False

    def _feed(self, uid: int) -> None:
        """Continue reading a user's connections: there is memory for the user's messages again."""
        for one in [one for one in self._registered if one.uid == uid and one.starved]:
            one.starved = False
            self._watch(one)

    def _evict(self, uid: int) -> None:
        """Close connections whose incomplete frames keep the user's other connections waiting."""
        user = [one for one in self._registered if one.uid == uid]
        self._evicting.discard(uid)
        if not any(one.starved for one in user):
            return
        for one in user:
            if one.account.admitted_bytes and time.monotonic() - one.account.admitted_s > FRAME_S:
                self._close(one, FrameError(f"a message was still incomplete after {FRAME_S:g} s"))
        self._evicting.add(uid)
        self._loop.call_later(STARVED_CHECK_S, self._evict, uid)

    def _call_soon(self, call: Callable[[], None]) -> None:
        """Run `call` in the event loop, without waiting for it; any thread may use this method."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def _close(self, one: _Connection, error: Exception) -> None:
        if one.frames.fileno() < 0:
            return
        if isinstance(error, SentinelError) and one.receiver is None:
            _refuse(one.frames, error)
        if not isinstance(error, EOFError):
            known = isinstance(error, FrameError | SentinelError)
            log.warning(
                "closing the shim connection of process %d: %s",
                one.frames.peer()[0],
                error if known else "internal error",
                exc_info=None if known else error,
                extra=about(LogEvent.CONNECTION_CLOSED, uid=one.uid, pid=one.frames.peer()[0]),
            )
        self._loop.remove_reader(one.frames.fileno())
        one.frames.close()
        self._memory.close(one.account)
        if one.hello_timer is not None:
            one.hello_timer.cancel()
        if one.receiver is None:
            self._listener.release(one.uid)
            return
        self._registered.discard(one)
        self._counts[one.uid] -= 1
        if not self._counts[one.uid]:
            del self._counts[one.uid]
        one.receiver(None, 0)


def _refuse(frames: FrameSocket, error: SentinelError) -> None:
    """Send the reason for the refusal. The training prints the reason, because its user may be
    unable to read the daemon's log."""
    with contextlib.suppress(EOFError):  # the process is gone already
        frames.send({"type": "refused", "error": str(error)})


def _refuse_socket(connection: socket.socket, error: SentinelError) -> None:
    _refuse(FrameSocket(connection), error)
