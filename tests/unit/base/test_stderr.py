# SPDX-License-Identifier: Apache-2.0
"""If standard error cannot be written to, lines are discarded; the exit status stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SAY_TWICE = """
from sentineld.base.stderr import say
say("one")
say("two")
raise SystemExit(7)
"""


def run(stderr: int) -> int:
    command = [sys.executable, "-c", SAY_TWICE]
    return subprocess.run(command, stderr=stderr, timeout=60, check=False).returncode


def test_lines_are_written(tmp_path: Path) -> None:
    with (tmp_path / "lines").open("w") as file:
        assert run(file.fileno()) == 7
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


@pytest.mark.parametrize("reason", ["full", "closed"])
def test_a_broken_standard_error_does_not_change_the_status(reason: str) -> None:
    if reason == "full":
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    try:
        assert run(descriptor) == 7
    finally:
        os.close(descriptor)
