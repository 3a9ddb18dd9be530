# SPDX-License-Identifier: Apache-2.0
"""The shim's lines appear on stderr, or nowhere if stderr does not take them."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sentineld.shim.say import say
from tests.unit.shim.shimmed import ROOT

LINE = "sentineld.shim: text\n"


def python(code: str, stderr: int) -> tuple[int, str]:
    """(exit status, standard output) of a script with this descriptor as its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom sentineld.shim.say import say\n{code}"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=ROOT,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(params=["closed pipe", "full disk", "no blocking"])
def unwritable(request: pytest.FixtureRequest) -> int:
    """A descriptor to which nothing can be written."""
    if request.param == "full disk":
        return os.open("/dev/full", os.O_WRONLY)
    reading, writing = os.pipe()
    if request.param == "closed pipe":
        os.close(reading)
    else:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
    return writing


def test_a_line_that_stderr_does_not_take_is_dropped(unwritable: int) -> None:
    assert python("say('text')\nprint('on')", unwritable) == (0, "on\n")
    os.close(unwritable)


@pytest.mark.parametrize("change", ["sys.stderr.close()", "sys.stderr = None", "del sys.stderr"])
def test_a_closed_stderr_gets_no_line(change: str) -> None:
    reading, writing = os.pipe()
    status, output = python(f"{change}\nsay('text')\nprint('on')", writing)
    os.close(writing)
    with open(reading) as errors:
        assert (status, output, errors.read()) == (0, "on\n", "")


def test_a_line_follows_what_the_script_has_written(tmp_path: Path) -> None:
    path = tmp_path / "errors"
    with path.open("w") as file:
        code = "sys.stderr.write('\\u00e4, then ')\nsay('text')\nsys.stderr.write('end')"
        assert python(code, file.fileno()) == (0, "")
    assert path.read_text() == f"\u00e4, then {LINE}end"


def test_a_stream_of_the_script_gets_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    monkeypatch.setattr(sys, "stderr", text)
    say("text")
    assert text.getvalue() == LINE
    path = tmp_path / "errors.gz"
    with gzip.open(path, "wt") as packed:
        monkeypatch.setattr(sys, "stderr", packed)
        say("text")
    with gzip.open(path, "rt") as unpacked:
        assert unpacked.read() == LINE


def test_a_stream_whose_write_fails_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, text: str) -> None:
            raise ValueError(text)

    monkeypatch.setattr(sys, "stderr", Broken())
    say("text")
