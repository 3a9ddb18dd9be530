# SPDX-License-Identifier: Apache-2.0
"""A progress line on stderr for work that takes more than a second."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import click

from sentineld.base.errors import SentinelError
from sentineld.base.text import text_of
from sentineld.cli.output import Daemon, session_title
from sentineld.control.client import request

DELAY_S = 1.0
"""Time after which the line appears. It does not appear for work that ends earlier."""
REFRESH_S = 0.5
POLL_TIMEOUT_S = 1.0
MANAGED_POLL_S = 0.2
ERASE_LINE = "\r\x1b[K"


class Progress:
    """Shows a text and the elapsed time during a `with` block, if stderr is a terminal.

    The line is erased at the end of the block, so that only the results stay on the terminal.
    """

    def __init__(self, text: str, detail: Callable[[], str] | None = None) -> None:
        """text: description of the work; say() can change it. detail: returns a text that is
        added to each refreshed line; a SentinelError from detail() is ignored."""
        self._text = text
        self._detail = detail
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Replace the text."""
        self._text = text

    def __enter__(self) -> Progress:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._thread = threading.Thread(target=self._show, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        began_s = time.monotonic()
        if self._ended.wait(DELAY_S):
            return
        while True:
            line = f"{self._line()}, {time.monotonic() - began_s:.0f} s"
            columns = _columns()
            click.echo(ERASE_LINE + line[: columns - 1], err=True, nl=False)
            if self._ended.wait(REFRESH_S):
                click.echo(ERASE_LINE, err=True, nl=False)
                return

    def _line(self) -> str:
        try:
            detail = self._detail() if self._detail is not None else ""
        except SentinelError:
            detail = ""
        return f"{self._text}: {detail}" if detail else self._text


def _columns() -> int:
    """Width of the terminal that stderr is."""
    columns = 0
    with contextlib.suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return columns or shutil.get_terminal_size().columns


def session_progress(text: str, daemon: Daemon, pid: int) -> Progress:
    """Progress of an action on a process, with the state of the process's session."""

    def detail() -> str:
        session = find_session(request(daemon.socket, "status", POLL_TIMEOUT_S), pid)
        return state_of(session) if session is not None else ""

    return Progress(text, detail)


def find_session(status: Mapping[str, Any], pid: int, group: str = "") -> dict[str, Any] | None:
    """The session of a process or group in the daemon's answer to `status`; None if there is none.

    pid: not used for a group, because the processes of a group change.
    """
    for session in status["sessions"]:
        if session.get("group", "") == group and (group or session["pid"] == pid):
            found: dict[str, Any] = session
            return found
    return None


def state_of(session: Mapping[str, Any]) -> str:
    """A session's state with its reason, made printable, because a reason can hold text from the
    training."""
    return f"{session['state']}, {text_of(session['reason'], 200)}"


def wait_managed(daemon: Daemon, attached: Mapping[str, Any]) -> dict[str, Any]:
    """Wait until an attached process or group is managed; returns its entry in the answer to
    `status`. attached: the entry that the verb attach returned.

    Raises SentinelError if the target ends or is detached before it is managed, or if no plan can
    be made.
    """
    pid, group = attached["pid"], attached.get("group", "")
    title = session_title(attached)
    with Progress(f"attached {title}") as progress:
        while True:
            session = find_session(daemon.ask("status"), pid, group)
            if session is None or session["state"] == "ended":
                raise SentinelError("no-such-process", f"{title} ended before it was managed")
            if session["state"] == "managed":
                return session
            if session["state"] == "registered":
                reason = text_of(session["reason"], 200)
                raise SentinelError("failed", f"{title} is not managed: {reason}")
            progress.say(f"attached {title}: {state_of(session)}")
            time.sleep(MANAGED_POLL_S)
