# SPDX-License-Identifier: Apache-2.0
"""Serves sentinelctl's requests on the control socket; also creates listening Unix sockets."""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.control.client import CONTROL_VERSION
from sentineld.control.frames import FrameBuffer, FrameError, Message, encode

log = logging.getLogger(__name__)

Verb = Callable[[int, Message], Any]
"""A verb's handler: (caller's uid, arguments) -> JSON-serialisable result or WithFile.

It runs in a thread.
"""


@dataclass(frozen=True)
class WithFile:
    """A verb's result that carries a file to the caller."""

    result: Any
    fd: int  # sent to the caller, then closed here


SOCKET_BACKLOG = 64
VERB_CHARACTERS_MAX = 40


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

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs

    async def serve(self, connection: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """Serve one connection; the callback of asyncio.start_unix_server."""
        try:
            message = await self._read(connection)
            if message is not None:
                peer = answer.get_extra_info("socket")
                described, fds = await self._answer(_peer_uid(peer), message)
                try:
                    frame = encode(described)
                    answer.write(_send_with_fds(peer, frame, fds) if fds else frame)
                finally:
                    for fd in fds:
                        os.close(fd)
                await answer.drain()
        except (ConnectionError, FrameError, TimeoutError) as error:
            log.info("a control connection broke: %s", error)
        finally:
            answer.close()

    @staticmethod
    async def _read(connection: asyncio.StreamReader) -> Message | None:
        buffer = FrameBuffer()
        while data := await asyncio.wait_for(connection.read(1 << 16), timeout=10):
            if messages := buffer.feed(data):
                return messages[0]
        return None

    async def _answer(self, uid: int, message: Message) -> tuple[Message, list[int]]:
        name = text_of(message.get("verb"), VERB_CHARACTERS_MAX)
        try:
            if message.get("version") != CONTROL_VERSION:
                raise SentinelError(
                    "protocol-mismatch",
                    f"the daemon speaks control protocol {CONTROL_VERSION}",
                    "use the sentinelctl that came with the running daemon",
                )
            verb = self._verbs.get(name)
            arguments = message.get("arguments")
            if verb is None or not isinstance(arguments, dict):
                raise SentinelError("usage", f"unknown verb {name!r}")
            result = await asyncio.to_thread(verb, uid, arguments)
            fds = []
            if isinstance(result, WithFile):
                result, fds = result.result, [result.fd]
            return {"version": CONTROL_VERSION, "result": result}, fds
        except SentinelError as error:
            described = {"code": error.code, "message": error.message, "hint": error.hint}
        except Exception:
            log.exception("verb %s failed", name)
            described = {
                "code": "failed",
                "message": "internal error of the daemon",
                "hint": "see journalctl -u sentineld",
            }
        return {"version": CONTROL_VERSION, "error": described}, []


def _send_with_fds(peer: Any, frame: bytes, fds: list[int]) -> bytes:
    """Send the frame's first byte with the descriptors attached; returns the remaining bytes."""
    # asyncio's transport cannot send descriptors. The transport's buffer is still empty, so
    # writing to the socket directly keeps the order.
    with peer.dup() as connection:
        socket.send_fds(connection, [frame[:1]], fds)
    return frame[1:]


def _peer_uid(peer: Any) -> int:
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], "little")
