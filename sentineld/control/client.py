# SPDX-License-Identifier: Apache-2.0
"""The client's side of the control socket: one request, one answer."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

from sentineld.base.errors import EXIT_STATUS, SentinelError
from sentineld.control.frames import ANSWER, FDS_MAX, FrameBuffer, FrameError, encode

CONTROL_VERSION = 1


def request(path: Path, verb: str, timeout_s: float = 600.0, **arguments: Any) -> Any:
    """Send a verb (a command such as attach) to the daemon and return its answer.

    Raises the SentinelError that the daemon returned, or daemon-unreachable,
    not-permitted or protocol-mismatch if there is no valid answer.
    """
    result, fds = _request(path, verb, timeout_s, arguments)
    for fd in fds:
        os.close(fd)
    return result


def request_file(
    path: Path, verb: str, timeout_s: float = 600.0, **arguments: Any
) -> tuple[Any, int]:
    """Send a verb whose answer carries a file, and return (answer, descriptor).

    The caller owns the descriptor. Raises the same errors as request().
    """
    result, fds = _request(path, verb, timeout_s, arguments)
    if len(fds) != 1:
        for fd in fds:
            os.close(fd)
        raise SentinelError("protocol-mismatch", f"the daemon's answer to {verb} has no file")
    return result, fds[0]


def _request(
    path: Path, verb: str, timeout_s: float, arguments: dict[str, Any]
) -> tuple[Any, list[int]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            _connect(connection, path, timeout_s)
        except PermissionError:
            raise SentinelError(
                "not-permitted",
                f"no permission to use {path}",
                "run as root or as a member of the group sentineld",
            ) from None
        except OSError as error:
            raise SentinelError(
                "daemon-unreachable",
                f"no daemon answers at {path}: {error.strerror or error}",
                "start it (systemctl start sentineld), or name its socket with --socket",
            ) from None
        answer, fds = _exchange(connection, verb, arguments)
    if answer.get("version") != CONTROL_VERSION:
        raise SentinelError(
            "protocol-mismatch",
            f"the daemon speaks control protocol {answer.get('version')}, not {CONTROL_VERSION}",
            "use the sentinelctl that came with the running daemon",
        )
    refusal = answer.get("error")
    if refusal is None:
        return answer.get("result"), fds
    code = refusal.get("code")
    raise SentinelError(
        code if code in EXIT_STATUS else "failed",
        str(refusal.get("message", "the daemon gave no reason")),
        str(refusal.get("hint", "")),
    )


def _connect(connection: socket.socket, path: Path, timeout_s: float) -> None:
    """Connect; wait while the daemon's backlog of connections is full. Raises OSError.

    The kernel serves waiting connect() calls in order. SO_SNDTIMEO limits the wait. With a Python
    time-out, connect() would not wait: it would fail while the backlog is full. The client would
    have to call it again and again, and other clients could take each free place first.
    """
    seconds, rest_s = divmod(timeout_s, 1)
    # The number of microseconds is at least 1, because the kernel treats 0 as no time-out.
    timeval = struct.pack("ll", int(seconds), 1 + int(rest_s * 999_998))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    while not _connected(connection):
        connection.connect(str(path))
    connection.settimeout(timeout_s)


def _connected(connection: socket.socket) -> bool:
    """Whether the socket is connected.

    If a signal interrupts connect(), it can return without an error and without a connection.
    """
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


def _exchange(
    connection: socket.socket, verb: str, arguments: dict[str, Any]
) -> tuple[dict[str, Any], list[int]]:
    buffer = FrameBuffer(ANSWER)
    fds: list[int] = []
    try:
        # A daemon that refuses the connection can close it without reading the request. Sending
        # then fails, but the daemon's refusal may have arrived.
        with contextlib.suppress(ConnectionError):
            connection.sendall(
                encode({"version": CONTROL_VERSION, "verb": verb, "arguments": arguments})
            )
        while True:
            data, came, _, _ = socket.recv_fds(connection, 1 << 16, FDS_MAX)
            fds += came
            if not data:
                raise SentinelError(
                    "daemon-unreachable",
                    "the daemon closed the connection without an answer",
                    "see journalctl -u sentineld",
                )
            messages = buffer.feed(data)
            if messages:
                return messages[0], fds
    except TimeoutError:
        raise SentinelError(
            "daemon-unreachable", f"no answer to {verb} in time", "see journalctl -u sentineld"
        ) from None
    except ConnectionError as error:
        raise SentinelError(
            "daemon-unreachable", f"the connection broke: {error}", "see journalctl -u sentineld"
        ) from None
    except FrameError as error:
        raise SentinelError("protocol-mismatch", f"the daemon's answer: {error}") from None
