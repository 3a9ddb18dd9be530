# SPDX-License-Identifier: Apache-2.0
"""The error of a command becomes a line on stderr and an exit status."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest

from sentineld.base.errors import SentinelError
from sentineld.entry import run_command


def run(
    failure: BaseException | None, monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> int | str | None:
    """Run a command that raises `failure`, and return its exit status. If `failure` is None, the
    command returns normally."""

    @click.command()
    def act() -> None:
        if failure is not None:
            raise failure

    monkeypatch.setattr(sys, "argv", ["program", *arguments])
    try:
        run_command(act)
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize(
    ("failure", "status", "line"),
    [
        (None, 0, ""),
        (SentinelError("no-second-tier", "one node", "add one"), 7, "error: one node (add one)\n"),
        (SentinelError("bad-config", "no such key"), 78, "error: no such key\n"),
        (click.ClickException("too much"), 1, "Error: too much\n"),
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 1, "error: there is not enough memory\n"),
    ],
)
def test_each_end_has_its_status_and_its_line(
    failure: BaseException | None,
    status: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(failure, monkeypatch) == status
    assert capsys.readouterr().err.removeprefix("\n") == line


def test_an_unknown_option_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(None, monkeypatch, "--nonsense") == 2
    assert "--nonsense" in capsys.readouterr().err.splitlines()[-1]


def test_an_unexpected_error_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError(), monkeypatch)


def test_a_reader_that_closes_the_pipe_gets_no_traceback() -> None:
    script = (
        "import click\n"
        "from sentineld.entry import run_command\n"
        "@click.command()\n"
        "def lines():\n"
        "    for _ in range(100_000): click.echo('a line')\n"
        "run_command(lines)\n"
    )
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert os.read(read_end, 7) == b"a line\n"
    os.close(read_end)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (1, "")


def test_an_output_that_cannot_be_written_is_reported() -> None:
    command = "import click; from sentineld.entry import run_command\n"
    command += "@click.command()\ndef line(): click.echo('a line')\nrun_command(line)\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device\n"
