# SPDX-License-Identifier: Apache-2.0
"""Processes of an unprivileged user that connect to a socket and then do as they are told."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentineld.control.frames import FrameSocket
from sentineld.control.server import listen

USER = 1000
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")

_SCRIPT = """
import ctypes, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
connection.set_inheritable(True)
print("connected", flush=True)
while True:
    exec(sys.stdin.readline())
    print("done", flush=True)
"""


class Other:
    """A process that is connected. process: it; frames: the daemon's end of its connection."""

    def __init__(self, listener: socket.socket, user: int | None) -> None:
        ids = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-c", _SCRIPT, listener.getsockname()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            close_fds=True,
            **ids,  # type: ignore[call-overload]
        )
        self._answer("connected")
        listener.setblocking(True)
        self.frames = FrameSocket(listener.accept()[0])

    def do(self, statement: str, answers: bool = True) -> None:
        """Execute a Python statement in the process; `connection` is its socket. answers: it
        returns."""
        assert self.process.stdin is not None
        print(statement, file=self.process.stdin, flush=True)
        if answers:
            self._answer("done")

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self.process.kill()
        self.process.communicate()

    def _answer(self, expected: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == expected + "\n"


@contextmanager
def folder() -> Iterator[Path]:
    """A folder that every user may enter; tmp_path is its owner's only."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextmanager
def other(user: int | None = USER) -> Iterator[Other]:
    """A connected process. user: None: this process's."""
    with folder() as place:
        listener = listen(place / "socket", 0o666, None)
        started = Other(listener, user)
        try:
            yield started
        finally:
            started.end()
            started.frames.close()
            listener.close()


def program(place: Path, mode: int, group: int = 0) -> Path:
    """A copy of sleep(1) with these permissions, owned by root."""
    copy = place / f"sleep-{mode:o}-{group}"
    shutil.copy("/usr/bin/sleep", copy)
    os.chown(copy, 0, group)
    copy.chmod(mode)
    return copy
