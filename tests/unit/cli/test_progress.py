# SPDX-License-Identifier: Apache-2.0
"""Progress lines on a real terminal, and waiting until a process is managed."""

from __future__ import annotations

import os
import re
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.cli import progress as progress_module
from sentineld.cli.output import Daemon
from sentineld.cli.progress import ERASE_LINE, Progress, session_progress, wait_managed
from sentineld.control.frames import Message
from tests.unit.cli.answering import answering


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make stderr a terminal on which progress appears at once; yields the terminal's other end.

    This is not a fixture, because pytest replaces sys.stderr after it has set up the fixtures.
    """
    monkeypatch.setattr(progress_module, "DELAY_S", 0.0)
    monkeypatch.setattr(progress_module, "REFRESH_S", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    monitor, line = os.openpty()
    settings = termios.tcgetattr(line)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(line, termios.TCSANOW, settings)
    with os.fdopen(line, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        yield monitor
    os.close(monitor)


def read_until(monitor: int, text: str) -> str:
    """Everything that is written to the terminal until the text appears."""
    seen = ""
    while text not in seen:
        seen += os.read(monitor, 4096).decode()
    return seen


def read_rest(monitor: int) -> str:
    """Everything that has been written to the terminal since the last read."""
    os.set_blocking(monitor, False)
    seen = ""
    with suppress(BlockingIOError):
        while True:
            seen += os.read(monitor, 4096).decode()
    return seen


def session(state: str, pid: int = 7, reason: str = "as asked") -> dict[str, Any]:
    return {"pid": pid, "state": state, "reason": reason, "policy": "auto", "fast": "20%"}


def test_a_terminal_shows_the_latest_text_and_then_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with terminal(monkeypatch) as monitor:
        with Progress("measuring") as progress:
            text = re.escape(f"{ERASE_LINE}measuring, ")
            assert re.match(rf"{text}\d+ s", read_until(monitor, " s"))
            progress.say("writing")
            read_until(monitor, f"{ERASE_LINE}writing, ")
        assert read_rest(monitor).endswith(ERASE_LINE)


def test_a_line_is_shorter_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as monitor, Progress("x" * 100):
        seen = read_until(monitor, ERASE_LINE + "x" * 39)
        assert "x" * 40 not in seen


def test_work_of_less_than_a_second_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as monitor:
        monkeypatch.setattr(progress_module, "DELAY_S", 600.0)
        with Progress("measuring"):
            pass
        os.set_blocking(monitor, False)
        with pytest.raises(BlockingIOError):
            os.read(monitor, 1)


def test_nothing_is_shown_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "DELAY_S", 0.0)

    def detail() -> str:
        raise AssertionError("the daemon was asked for details")

    with Progress("measuring", detail):
        pass
    assert capsys.readouterr() == ("", "")


def test_progress_of_a_session_has_its_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer = {"sessions": [session("access", 8), session("planning", reason="3\x1bm")]}
    with terminal(monkeypatch) as monitor:
        with answering(tmp_path, status=lambda _: answer) as ctl:
            with session_progress("recording", Daemon(ctl.socket), 7):
                read_until(monitor, f"{ERASE_LINE}recording: planning, 3?m, ")
            with session_progress("recording", Daemon(ctl.socket), 9):
                read_until(monitor, f"{ERASE_LINE}recording, ")
        with session_progress("recording", Daemon(tmp_path / "none.sock"), 7):
            read_until(monitor, f"{ERASE_LINE}recording, ")


def status_of(*sessions: dict[str, Any] | None) -> Any:
    """Answers each request with the next of these sessions; where `sessions` has None, the answer
    has no session."""
    left = iter(sessions)

    def status(_: Message) -> Any:
        found = next(left)
        return {"sessions": [] if found is None else [found]}

    return status


def test_the_managed_session_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "MANAGED_POLL_S", 0.0)
    states = [session(state) for state in ("attached", "planning", "managed")]
    with answering(tmp_path, status=status_of(*states)) as ctl:
        assert wait_managed(Daemon(ctl.socket), session("attached")) == states[-1]


def test_a_group_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "MANAGED_POLL_S", 0.0)
    attached = {**session("attached"), "group": "cgroup /a"}
    later = [{**attached, "pid": 8}, {**attached, "pid": 9, "state": "managed"}]
    alone = {**session("registered"), "group": ""}
    answers = iter([{"sessions": [alone, one]} for one in later])
    with answering(tmp_path, status=lambda _: next(answers)) as ctl:
        assert wait_managed(Daemon(ctl.socket), attached) == later[-1]


@pytest.mark.parametrize(
    ("last", "code", "message"),
    [
        (session("registered", reason="no plan fits"), "failed", "not managed: no plan fits"),
        (session("ended"), "no-such-process", "process 7 ended"),
        (None, "no-such-process", "process 7 ended"),
    ],
)
def test_a_process_that_will_not_be_managed_ends_the_wait(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    last: dict[str, Any] | None,
    code: str,
    message: str,
) -> None:
    monkeypatch.setattr(progress_module, "MANAGED_POLL_S", 0.0)
    with (
        answering(tmp_path, status=status_of(session("access"), last)) as ctl,
        pytest.raises(SentinelError, match=message) as refused,
    ):
        wait_managed(Daemon(ctl.socket), session("attached"))
    assert refused.value.code == code
