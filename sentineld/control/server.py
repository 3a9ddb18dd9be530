# SPDX-License-Identifier: Apache-2.0
"""Serves sentinelctl's requests on the control socket; also creates listening Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import logging
import os
import socket
import stat
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from sentineld.base.errors import SentinelError
from sentineld.base.log_events import LogEvent, about
from sentineld.base.text import text_of
from sentineld.control.client import CONTROL_VERSION
from sentineld.control.frames import REQUEST, FrameError, FrameSocket, Message, encode
from sentineld.control.listener import Limits, Listener
from sentineld.control.pace import Pace

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Caller:
    """The client that requested a verb (a command such as attach)."""

    uid: int
    gone: threading.Event
    """Set when the client has hung up or sent more data, or when the daemon stops. The verb must
    then end soon."""


Verb = Callable[[Caller, Message], Any]
"""A verb's handler: (caller, arguments) -> JSON-serialisable result or WithFile.

The handler runs in a thread.
"""


@dataclass(frozen=True)
class WithFile:
    """A verb's result that carries a file to the caller."""

    result: Any
    fd: int  # sent to the caller, then closed here


SOCKET_BACKLOG = 1024
"""Maximum number of connections that wait for accept()."""
CONTROL_BACKLOG = 128
REFUSED_PAUSE_S = 0.02
"""Pause after REFUSED_MAX refused connections (listener.py). Without this pause, a user who
connects again and again would occupy a CPU core. All connections of the backlog are accepted or
refused within a tenth of a second, and further clients wait in connect()."""
VERB_CHARACTERS_MAX = 40
CONNECTIONS = Limits(of_user=64, of_root=128, total=256)
REQUEST_COST_S = 0.001
"""Assumed CPU time of a request, in the event loop and in a verb's thread. The number of verbs that
may take longer is limited; see VERBS."""
REQUEST_S = 10.0
"""Time limit for a request to arrive."""
ANSWER_S = 10.0
"""Time limit for the client to receive an answer."""
VERBS = Limits(of_user=16, of_root=32, total=32)
"""Limits of pending verbs, such as recordings; quick verbs (see ControlServer) are not counted. A
verb is pending until the client has received the answer. One user may need several at the same
time, because each rank of a training is a process."""
QUICK_THREADS = 4


def listen(path: Path, mode: int, group: str | None) -> socket.socket:
    """Create a listening Unix socket; no client can connect before the socket's mode is set.

    Replaces the socket of a dead daemon, but no other file. Raises SentinelError if a live daemon
    listens there, or if the socket cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead_socket(path)
    except OSError as error:
        raise _cannot_listen(path, error) from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    # Accepted sockets inherit this option, so the sender of data is known from the first byte on.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise _cannot_listen(path, error) from None
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


def require_no_daemon(path: Path) -> None:
    """Raise SentinelError("busy") if a daemon listens at the path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return
    raise SentinelError(
        "busy",
        f"another daemon listens at {path}",
        "stop it; that of the unit: systemctl stop sentineld",
    )


def _remove_dead_socket(path: Path) -> None:
    """Remove a socket at which no daemon listens. Raises SentinelError if a daemon listens there,
    and OSError if the socket cannot be removed."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        return  # bind() will report that the path exists
    require_no_daemon(path)
    path.unlink(missing_ok=True)


def _cannot_listen(path: Path, error: OSError) -> SentinelError:
    return SentinelError(
        "failed",
        f"cannot listen at {path}: {error.strerror or error}",
        "set another path in the config",
    )


class ControlServer:
    """Answers one request per connection."""

    def __init__(self, verbs: Mapping[str, Verb], quick: Mapping[str, Verb]) -> None:
        """quick: verbs that never wait for a process. They run in separate threads, so that slow
        verbs can't delay them. Each user's quick verbs run one at a time, so that one user can't
        occupy all of these threads."""
        self._verbs = {**verbs, **quick}
        self._quick = frozenset(quick)
        self._pending: Counter[int] = Counter()
        self._turns: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._quick_threads = ThreadPoolExecutor(QUICK_THREADS, "quick-verb")
        self._tasks: set[asyncio.Task[None]] = set()
        self._pace = Pace()
        self._listener: Listener | None = None

    def listen(self, listening: socket.socket) -> None:
        """Serve the connections of a socket in the running event loop."""
        listening.listen(CONTROL_BACKLOG)
        self._listener = Listener(
            listening, CONNECTIONS, self._accepted, _refuse, refused_pause_s=REFUSED_PAUSE_S
        )

    async def close(self) -> None:
        """Accept no more connections, and cancel all verbs."""
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
        client = FrameSocket(connection, REQUEST)
        try:
            while (rest_s := self._pace.rest_s(uid)) > 0:
                await asyncio.sleep(rest_s)
            self._pace.charge(uid, REQUEST_COST_S)
            async with asyncio.timeout(REQUEST_S):
                request = await _receive(client)
            await self._reply(uid, client, request)
        except _HungUpError:
            pass
        except TimeoutError:
            log.info(
                "closing a control connection: the client is too slow",
                extra=about(LogEvent.CONNECTION_CLOSED, uid=uid),
            )
        except (FrameError, SentinelError) as error:
            log.info(
                "closing a control connection: %s",
                error,
                extra=about(LogEvent.CONNECTION_CLOSED, uid=uid),
            )
        finally:
            client.close()

    async def _reply(self, uid: int, client: FrameSocket, request: Message) -> None:
        name = text_of(request.get("verb"), VERB_CHARACTERS_MAX)
        try:
            if request.get("version") != CONTROL_VERSION:
                raise SentinelError(
                    "protocol-mismatch",
                    f"the daemon speaks control protocol {CONTROL_VERSION}",
                    "use the sentinelctl that came with the running daemon",
                )
            arguments = request.get("arguments")
            if name not in self._verbs or not isinstance(arguments, dict):
                raise SentinelError("usage", f"unknown verb {name!r}")
            if name in self._quick:
                # A user's quick requests wait here for each other, not for another user's requests.
                async with self._turns.setdefault(uid, asyncio.Lock()):
                    answer = await self._run(self._in_pool, uid, name, arguments, client)
            else:
                await self._run_counted(uid, name, arguments, client)
                return
        except SentinelError as error:
            answer = _refusal(error)
        await answer.send(client)

    async def _run_counted(
        self, uid: int, name: str, arguments: Message, client: FrameSocket
    ) -> None:
        """Run a verb that may take a long time, and send its answer. Raises SentinelError if too
        many verbs of the user, or of all users, are pending."""
        problem = VERBS.problem(self._pending, uid, "pending commands")
        if problem:
            raise SentinelError("busy", problem, "wait for one of them, or interrupt it")
        self._pending[uid] += 1
        try:
            answer = await self._run(_in_thread, uid, name, arguments, client)
            await answer.send(client)
        finally:
            self._pending[uid] -= 1
            if not self._pending[uid]:
                del self._pending[uid]

    async def _run(
        self,
        start: Callable[[Callable[[], _Answer]], asyncio.Future[_Answer]],
        uid: int,
        name: str,
        arguments: Message,
        client: FrameSocket,
    ) -> _Answer:
        """Run a verb; if the client hangs up or sends more data meanwhile, set the verb's
        Caller.gone.

        Returns only when the verb has ended, because the verb counts as pending until then. start:
        starts the verb in a thread; may raise SentinelError."""
        loop = asyncio.get_running_loop()
        caller = Caller(uid, threading.Event())
        verb = start(lambda: self._answer(name, caller, arguments))
        hang_up = loop.create_task(_until_hung_up(client))
        try:
            waiting: set[asyncio.Future[Any]] = {verb, hang_up}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if verb.done():
                return verb.result()
            caller.gone.set()
            (await verb).close()
            await hang_up
            raise _HungUpError
        except asyncio.CancelledError:
            caller.gone.set()
            verb.add_done_callback(_discard)
            raise
        finally:
            # The task hang_up watches the connection's descriptor, so it must end before the
            # descriptor is closed.
            hang_up.cancel()
            await asyncio.gather(hang_up, return_exceptions=True)

    def _in_pool(self, call: Callable[[], _Answer]) -> asyncio.Future[_Answer]:
        return asyncio.get_running_loop().run_in_executor(self._quick_threads, call)

    def _answer(self, name: str, caller: Caller, arguments: Message) -> _Answer:
        """Run a verb and encode its answer. Called in a thread, because running and encoding can
        take a long time."""
        try:
            result = self._verbs[name](caller, arguments)
            fd = None
            if isinstance(result, WithFile):
                result, fd = result.result, result.fd
            return _Answer(encode({"version": CONTROL_VERSION, "result": result}), fd)
        except SentinelError as error:
            return _refusal(error)
        except Exception:
            log.exception(
                "verb %s failed", name, extra=about(LogEvent.INTERNAL_ERROR, uid=caller.uid)
            )
            return _refusal(
                SentinelError(
                    "failed", "internal error of the daemon", "see journalctl -u sentineld"
                )
            )


def _in_thread(call: Callable[[], _Answer]) -> asyncio.Future[_Answer]:
    """Run a call in a new thread, which ends with the call. No thread pool is used, because a
    thread pool never shrinks.

    Raises SentinelError."""
    answer: Future[_Answer] = Future()
    answer.set_running_or_notify_cancel()
    try:
        threading.Thread(target=lambda: answer.set_result(call()), name="verb", daemon=True).start()
    except RuntimeError as error:
        raise SentinelError("busy", f"no thread for the command: {error}", "try again") from None
    return asyncio.wrap_future(answer)


class _HungUpError(Exception):
    """The client has closed its connection."""


class _Answer:
    """An encoded answer, and the file that goes with it."""

    def __init__(self, frame: bytes, fd: int | None = None) -> None:
        self._frame = frame
        self._fd = fd

    async def send(self, client: FrameSocket) -> None:
        """Send the answer. Raises TimeoutError if the client does not take it within ANSWER_S, or
        _HungUpError if the client has closed its connection."""
        try:
            async with asyncio.timeout(ANSWER_S):
                left = memoryview(self._frame)
                fds = [] if self._fd is None else [self._fd]
                while left:
                    try:
                        left, fds = left[client.send_some(left, fds) :], []
                    except BlockingIOError:
                        await _ready(client, writing=True)
        except EOFError:
            raise _HungUpError from None
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _discard(verb: asyncio.Future[_Answer]) -> None:
    if not verb.cancelled():
        verb.result().close()


def _refusal(error: SentinelError) -> _Answer:
    described = {"code": error.code, "message": error.message, "hint": error.hint}
    return _Answer(encode({"version": CONTROL_VERSION, "error": described}))


def _refuse(connection: socket.socket, error: SentinelError) -> None:
    described = {"code": error.code, "message": error.message, "hint": error.hint}
    with contextlib.suppress(EOFError):
        FrameSocket(connection).send({"version": CONTROL_VERSION, "error": described})


async def _receive(client: FrameSocket) -> Message:
    """The next request. Raises _HungUpError, FrameError or SentinelError."""
    while True:
        try:
            requests = client.receive()
        except EOFError:
            raise _HungUpError from None
        if len(requests) > 1:
            raise FrameError("more than one request")
        if requests:
            return requests[0]
        await _ready(client)


async def _until_hung_up(client: FrameSocket) -> None:
    with contextlib.suppress(_HungUpError):
        await _receive(client)
        raise FrameError("more than one request")


async def _ready(client: FrameSocket, writing: bool = False) -> None:
    """Wait until the connection can be read or written."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    (loop.add_writer if writing else loop.add_reader)(client.fileno(), set_ready)
    try:
        await ready
    finally:
        (loop.remove_writer if writing else loop.remove_reader)(client.fileno())
