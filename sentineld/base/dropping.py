# SPDX-License-Identifier: Apache-2.0
"""Closes connections whose receive queue may hold descriptors that the daemon has not received.

When a thread closes such a connection, the kernel also closes these descriptors in this thread. If
one of them is a TCP socket with SO_LINGER and unsent data, the thread waits for a time that the
sender of the descriptor has set. An exiting process does not wait, because inet_release() tests
PF_EXITING. Therefore a child process inherits these connections, and the daemon closes its own
copies of them. Then the child exits, which closes the connections without waiting.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import termios
import threading
import time

log = logging.getLogger(__name__)

HELD_MAX = 512
"""While this many connections wait to be dropped, listeners accept no connections."""
BATCH = 256
"""Maximum number of connections that one child process drops."""
BATCH_S = 0.05
"""Time, in seconds, for which connections are collected for one child process."""
CHILDREN_MAX = 4
"""Maximum number of child processes at a time. A child process ends immediately unless closing one
of its descriptors blocks in a kernel driver."""
RETRY_S = 1.0

_lock = threading.Lock()
_held: list[int] = []
_serving = False


def drop(connection: socket.socket) -> None:
    """Close a connection; returns immediately."""
    # From now on the peer can't send anything, so an empty queue stays empty.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    if not _unread_bytes(connection):
        connection.close()
        return
    global _serving
    with _lock:
        _held.append(connection.detach())
        if _serving:
            return
        _serving = True
    try:
        threading.Thread(target=_serve, name="dropping", daemon=True).start()
    except RuntimeError as error:
        log.warning("dropped connections stay open until another one is dropped: %s", error)
        with _lock:
            _serving = False


def held() -> int:
    """Number of dropped connections that no child process has inherited yet."""
    with _lock:
        return len(_held)


def _unread_bytes(connection: socket.socket) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(connection, termios.FIONREAD, count)
    return count[0]


def _serve() -> None:
    global _serving
    children: list[subprocess.Popen[bytes]] = []
    while True:
        time.sleep(BATCH_S)
        children = [child for child in children if child.poll() is None]
        if len(children) >= CHILDREN_MAX:
            continue
        with _lock:
            fds = _held[:BATCH]
            if not fds and not children:
                _serving = False
                return
        if not fds:
            continue
        try:
            children.append(_inherit(fds))
        except OSError as error:
            log.warning("%d connections can't be dropped yet: %s", len(fds), error)
            time.sleep(RETRY_S)
            continue
        with _lock:
            del _held[: len(fds)]


def _inherit(fds: list[int]) -> subprocess.Popen[bytes]:
    """Move connections into a child process that exits. Raises OSError if no child can start."""
    child = subprocess.Popen(
        ["/bin/cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=fds,
        env={},
        cwd="/",
    )
    for fd in fds:
        os.close(fd)
    assert child.stdin is not None
    child.stdin.close()  # the child exits at the end of its input
    return child
