# SPDX-License-Identifier: Apache-2.0
"""If the verb top cannot begin, it prints one line and exits. In a terminal, it runs until the user
presses q."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sentinelctl import SENTINELCTL, refused
from tests.unit.cli.answering import answering
from tests.unit.top.answers import residency, status

WITHOUT = """
import sys
sys.modules[{name!r}] = None
from sentineld.cli import main
main()
"""
PATIENCE_S = 300.0


def top(*options: str, command: tuple[str, ...] = SENTINELCTL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *options, "top"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("name", ["textual", "rich"])
def test_a_missing_library_is_one_line_with_the_way_to_install_it(name: str) -> None:
    done = top(command=(sys.executable, "-c", WITHOUT.format(name=name)))
    line = refused(done, "failed")
    assert f"needs {name}, which is not installed or too old (Debian 13: apt install" in line


def test_an_unreachable_daemon_ends_the_verb(tmp_path: Path) -> None:
    refused(top("--socket", str(tmp_path / "none")), "daemon-unreachable")


def test_without_a_terminal_the_verb_ends(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: status()) as ctl:
        line = refused(top("--socket", str(ctl.socket)), "usage")
    assert "needs a terminal (use sentinelctl status" in line


@pytest.mark.parametrize("interval", ["0", "0.1", "often", "nan"])
def test_the_interval_is_checked(tmp_path: Path, interval: str) -> None:
    with answering(tmp_path, status=lambda _: status()) as ctl:
        assert ctl.run("top", "--interval", interval).exit_code == 2
    assert ctl.asked == []


def test_in_a_terminal_the_view_runs_until_q(tmp_path: Path) -> None:
    with answering(tmp_path, status=lambda _: status(), residency=lambda _: residency()) as ctl:
        outer, inner = pty.openpty()
        process = subprocess.Popen(
            [*SENTINELCTL, "--socket", str(ctl.socket), "top"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(inner)
        try:
            read_until(outer, b"tier 1")
            os.write(outer, b"q")
            assert read_to_end(outer, process) == 0
        finally:
            process.kill()
            process.wait()
            os.close(outer)


def read_until(terminal: int, text: bytes) -> None:
    """Read the program's output until it contains the text."""
    seen, deadline_s = b"", time.monotonic() + PATIENCE_S
    while text not in seen:
        ready, _, _ = select.select([terminal], [], [], max(deadline_s - time.monotonic(), 0))
        assert ready, seen
        seen += os.read(terminal, 1 << 16)


def read_to_end(terminal: int, process: subprocess.Popen[bytes]) -> int:
    """Read until the program has closed the terminal; return its exit status."""
    while True:
        try:
            if not os.read(terminal, 1 << 16):
                break
        except OSError:  # EIO: no process has the terminal open
            break
    return process.wait(PATIENCE_S)
