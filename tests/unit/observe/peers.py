# SPDX-License-Identifier: Apache-2.0
"""Processes of an unprivileged user that connect to a socket and execute a test's statements."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sentineld.control.frames import FrameSocket
from sentineld.control.server import listen

USER = 1000
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")

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
    """A process that is connected to the socket at `path`.

    user: uid of the process; None: the test's own user.
    """

    def __init__(self, path: str, user: int | None = USER, pass_fds: Sequence[int] = ()) -> None:
        ids = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self.process = subprocess.Popen(
            ["/usr/bin/python3", "-c", _SCRIPT, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
            **ids,  # type: ignore[call-overload]
        )
        self._answer("connected")

    def do(self, statement: str, answers: bool = True) -> None:
        """Execute a Python statement in the process; `connection` is its socket. answers: whether
        the statement returns."""
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
    """A folder that every user may enter, unlike tmp_path."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextmanager
def other(user: int | None = USER) -> Iterator[tuple[Other, FrameSocket]]:
    """A connected process, and the daemon's end of its connection."""
    with folder() as place, listen(place / "socket", 0o666, None) as listener:
        started = Other(str(place / "socket"), user)
        listener.setblocking(True)
        frames = FrameSocket(listener.accept()[0])
        try:
            yield started, frames
        finally:
            started.end()
            frames.close()


def program(place: Path, mode: int, group: int = 0) -> Path:
    """A copy of sleep(1) with these permissions, owned by root."""
    copy = place / f"sleep-{mode:o}-{group}"
    shutil.copy("/usr/bin/sleep", copy)
    os.chown(copy, 0, group)
    copy.chmod(mode)
    return copy
