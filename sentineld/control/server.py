# SPDX-License-Identifier: Apache-2.0
"""Serves sentinelctl's requests on the control socket; also creates listening Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentineld.base.closing import close_connection, close_untrusted
from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.control.client import CONTROL_VERSION
from sentineld.control.frames import (
    REQUEST,
    SCM_MAX_FD,
    FrameBuffer,
    FrameError,
    Message,
    encode,
)
from sentineld.control.listener import Limits, Listener

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """The client of a verb."""

    uid: int
    gone: threading.Event
    """Set when the client has hung up: then the verb must end soon."""


Verb = Callable[[Caller, Message], Any]
"""A verb's handler: (caller, arguments) -> JSON-serialisable result or WithFile.

It runs in a thread.
"""


@dataclass(frozen=True)
class WithFile:
    """A verb's result that carries a file to the caller."""

    result: Any
    fd: int  # sent to the caller, then closed here


SOCKET_BACKLOG = 1024
"""Connections that wait for accept(). Each is accepted at once, or refused."""
VERB_CHARACTERS_MAX = 40
CONNECTIONS = Limits(of_user=64, total=256)
REQUEST_S = 10.0
ANSWER_S = 10.0
"""Time for the client to read an answer."""
VERBS_OF_USER = 16
"""Pending verbs, such as recordings, of one user. One user may have a process for each rank."""
VERBS_MAX = 64
QUICK_THREADS = 4


def listen(path: Path, mode: int, group: str | None) -> socket.socket:
    """Create a listening Unix socket; no client can connect before its mode is set.

    Replaces the socket of a dead daemon. Raises SentinelError if a live daemon listens
    there, or if the socket cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
        else:
            raise SentinelError(
                "failed", f"another daemon listens at {path}", "stop it: systemctl stop sentineld"
            )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # Accepted sockets inherit it, so that the sender of data is known from the first byte on.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise SentinelError(
            "failed", f"cannot listen at {path}: {error.strerror}", "set another path in the config"
        ) from None
    finally:
        os.umask(umask)
    if group is not None:
        try:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        except (KeyError, PermissionError) as error:
            log.warning("cannot set the group of %s: %s", path, error)
    os.chmod(path, mode)
    listener.listen(SOCKET_BACKLOG)
    return listener


class ControlServer:
    """Answers one request per connection."""

    def __init__(self, verbs: Mapping[str, Verb], quick: Mapping[str, Verb]) -> None:
        """quick: verbs that never block. They have threads of their own, so that no number of
        other verbs delays them."""
        self._verbs = {**verbs, **quick}
        self._quick = frozenset(quick)
        self._pending: Counter[int] = Counter()
        self._threads = ThreadPoolExecutor(VERBS_MAX, "verb")
        self._quick_threads = ThreadPoolExecutor(QUICK_THREADS, "quick-verb")
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: Listener | None = None

    def listen(self, listening: socket.socket) -> None:
        """Serve the connections of a socket in the running event loop."""
        self._listener = Listener(listening, CONNECTIONS, self._accepted, _refuse)

    async def close(self) -> None:
        """Accept no more connections, and give up all verbs."""
        if self._listener is not None:
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, connection: socket.socket, uid: int) -> None:
        assert self._listener is not None
        release = self._listener.release
        task = asyncio.get_running_loop().create_task(self._serve(connection, uid))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: release(uid))

    async def _serve(self, connection: socket.socket, uid: int) -> None:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(REQUEST_S):
                message = await _read(connection, uid)
            if message is not None:
                await self._reply(connection, uid, message)
        except (OSError, FrameError) as error:  # TimeoutError and ConnectionError included
            text = str(error) or "it is too slow"
            log.info("closing a control connection: %s", text, extra={"uid": uid})
        finally:
            close_connection(uid, connection)

    async def _reply(self, connection: socket.socket, uid: int, message: Message) -> None:
        described, fds = await self._answer(connection, uid, message)
        try:
            frame = encode(described)
            if fds:
                # The buffer is empty, so that this does not block.
                socket.send_fds(connection, [frame[:1]], fds)
                frame = frame[1:]
        finally:
            for fd in fds:
                os.close(fd)
        async with asyncio.timeout(ANSWER_S):
            await asyncio.get_running_loop().sock_sendall(connection, frame)

    async def _answer(
        self, connection: socket.socket, uid: int, message: Message
    ) -> tuple[Message, list[int]]:
        name = text_of(message.get("verb"), VERB_CHARACTERS_MAX)
        try:
            if message.get("version") != CONTROL_VERSION:
                raise SentinelError(
                    "protocol-mismatch",
                    f"the daemon speaks control protocol {CONTROL_VERSION}",
                    "use the sentinelctl that came with the running daemon",
                )
            arguments = message.get("arguments")
            if name not in self._verbs or not isinstance(arguments, dict):
                raise SentinelError("usage", f"unknown verb {name!r}")
            result = await self._run(connection, uid, name, arguments)
            fds = []
            if isinstance(result, WithFile):
                result, fds = result.result, [result.fd]
            return {"version": CONTROL_VERSION, "result": result}, fds
        except ConnectionError:
            raise
        except SentinelError as error:
            described = _described(error)
        except Exception:
            log.exception("verb %s failed", name, extra={"uid": uid})
            described = {
                "code": "failed",
                "message": "internal error of the daemon",
                "hint": "see journalctl -u sentineld",
            }
        return {"version": CONTROL_VERSION, "error": described}, []

    async def _run(self, connection: socket.socket, uid: int, name: str, arguments: Message) -> Any:
        """Run a verb in a thread; give it up if the client hangs up meanwhile."""
        loop = asyncio.get_running_loop()
        caller = Caller(uid, threading.Event())
        if name in self._quick:
            return await loop.run_in_executor(
                self._quick_threads, self._verbs[name], caller, arguments
            )
        self._require_room(uid)
        self._pending[uid] += 1
        verb = loop.run_in_executor(self._threads, self._verbs[name], caller, arguments)
        verb.add_done_callback(lambda done: self._ended(uid, caller, done))
        hang_up = loop.create_task(_readable(connection))
        try:
            await asyncio.wait({verb, hang_up}, return_when=asyncio.FIRST_COMPLETED)
            if not verb.done():
                # The client has sent all that it has to send.
                raise ConnectionError(f"the client of {name} hung up")
            return verb.result()
        finally:
            caller.gone.set()
            hang_up.cancel()
            await asyncio.wait({hang_up})  # it must not watch a closed descriptor

    def _require_room(self, uid: int) -> None:
        if self._pending[uid] >= VERBS_OF_USER:
            problem = f"user {uid} has {VERBS_OF_USER} pending commands, which is the limit"
        elif self._pending.total() >= VERBS_MAX:
            problem = f"there are {VERBS_MAX} pending commands, which is the limit"
        else:
            return
        raise SentinelError("busy", problem, "wait for one of them, or interrupt it")

    def _ended(self, uid: int, caller: Caller, verb: asyncio.Future[Any]) -> None:
        self._pending[uid] -= 1
        if not self._pending[uid]:
            del self._pending[uid]
        if not caller.gone.is_set() or verb.cancelled():
            return
        # The client hung up, so nobody takes the result.
        if verb.exception() is None and isinstance(result := verb.result(), WithFile):
            os.close(result.fd)


def _refuse(connection: socket.socket, error: SentinelError) -> None:
    """Answer before the request is read."""
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(encode({"version": CONTROL_VERSION, "error": _described(error)}))


def _described(error: SentinelError) -> Message:
    return {"code": error.code, "message": error.message, "hint": error.hint}


async def _read(connection: socket.socket, uid: int) -> Message | None:
    """The first message. Raises FrameError and OSError."""
    buffer = FrameBuffer(REQUEST)
    while True:
        await _readable(connection)
        try:
            data, fds, _, _ = socket.recv_fds(connection, 1 << 16, SCM_MAX_FD)
        except BlockingIOError:
            continue
        for fd in fds:
            close_untrusted(uid, fd)
        if not data:
            return None
        if messages := buffer.feed(data):
            return messages[0]


async def _readable(connection: socket.socket) -> None:
    """Wait for data, or for the client to hang up."""
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    loop.add_reader(connection.fileno(), came.set)
    try:
        await came.wait()
    finally:
        loop.remove_reader(connection.fileno())
