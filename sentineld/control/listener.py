# SPDX-License-Identifier: Apache-2.0
"""Accepts connections on a Unix socket, in limited numbers for each user and in total."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from sentineld.base.closing import too_many
from sentineld.base.dropping import HELD_MAX, drop, held
from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about

log = logging.getLogger(__name__)

ACCEPTED_MAX = 64
"""Maximum number of connections accepted in one iteration of the event loop."""
PAUSE_S = 1.0
"""Pause after accept() has failed, for example for lack of descriptors. The listener stays
readable, so without a pause the event loop would call accept() again and again."""


HELD_PAUSE_S = 0.02
"""Pause while HELD_MAX dropped connections are still open. dropping.py closes up to 256 of them
about every 0.05 s."""
REFUSED_MAX = 32
"""After this number of refused connections in one iteration of the event loop, the listener pauses
if refused_pause_s is not 0."""


class Limits(NamedTuple):
    """Limits of connections or commands. Root is limited, too, because a faulty training of root
    can open many connections."""

    of_user: int
    of_root: int
    total: int  # of all users but root together, so that root can still connect

    def problem(self, counts: Counter[int], uid: int, what: str) -> str:
        """The reason why this user can't have one more connection or command; "" if the user
        can. counts: the number of connections or commands of each user ID. what: "connections"
        or the like, for the message."""
        limit = self.of_user if uid else self.of_root
        if counts[uid] >= limit:
            return f"user {uid} has {limit} {what}, which is the limit"
        if uid and counts.total() - counts[0] >= self.total:
            return f"there are {self.total} {what}, which is the limit"
        return ""


class Listener:
    """Accepts connections in the event loop in which the Listener is created."""

    def __init__(
        self,
        listening: socket.socket,
        limits: Limits,
        on_connection: Callable[[socket.socket, int], None],
        on_refused: Callable[[socket.socket, SentinelError], None] = lambda _, __: None,
        refused_pause_s: float = 0.0,
    ) -> None:
        """on_connection: called with an accepted connection and its user ID; takes ownership of the
        connection. When the connection should no longer count towards the limits, its owner calls
        release().
        on_refused: may send the reason before a connection is closed.
        refused_pause_s: pause after REFUSED_MAX refused connections. The backlog can become full
        during the pause. Therefore use a pause only if the clients' connect() waits while the
        backlog is full."""
        self._listening = listening
        self._limits = limits
        self._on_connection = on_connection
        self._on_refused = on_refused
        self._refused_pause_s = refused_pause_s
        self._counts: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._watch()

    def release(self, uid: int) -> None:
        """Stop counting a connection of this user."""
        self._counts[uid] -= 1
        if not self._counts[uid]:
            del self._counts[uid]

    def close(self) -> None:
        """Accept no more connections."""
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())
            self._listening.close()

    def _watch(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        refused = 0
        for _ in range(ACCEPTED_MAX):
            if held() >= HELD_MAX:
                self._report_pause(HELD_PAUSE_S, f"{HELD_MAX} dropped connections are still open")
                return
            if self._refused_pause_s and refused >= REFUSED_MAX:
                self._pause(self._refused_pause_s)
                return
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                self._report_pause(PAUSE_S, str(error.strerror))
                return
            refused += not self._take(connection, peer_uid(connection))

    def _report_pause(self, pause_s: float, why: str) -> None:
        log.warning(
            "no connection is accepted for %g s: %s",
            pause_s,
            why,
            extra=about(LogEvent.CONNECTION_CLOSED),
        )
        self._pause(pause_s)

    def _pause(self, pause_s: float) -> None:
        self._loop.remove_reader(self._listening.fileno())
        self._loop.call_later(pause_s, self._watch)

    def _take(self, connection: socket.socket, uid: int) -> bool:
        """Pass a connection on, or refuse it; returns whether it was passed on."""
        problem = self._limits.problem(self._counts, uid, "connections")
        if too_many(uid):
            problem = f"too many descriptors that user {uid} sent are still being closed"
        if problem:
            log.warning(
                "a connection is refused: %s",
                problem,
                extra=about(LogEvent.CONNECTION_CLOSED, uid=uid),
            )
            self._on_refused(connection, SentinelError("busy", problem, "try again later"))
            drop(connection)
            return False
        self._counts[uid] += 1
        self._on_connection(connection, uid)
        return True


def peer_uid(connection: socket.socket) -> int:
    """The user ID of a connection's peer, from the kernel (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return int(uid)
