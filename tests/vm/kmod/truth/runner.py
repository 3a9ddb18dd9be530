# SPDX-License-Identifier: Apache-2.0
"""Runs programs in a guest, one after another, with one kmod-truth process."""

from __future__ import annotations

import subprocess
import threading

from tests.vm.guest import Guest

from .outcome import Outcome, parse
from .programs import Program

PROGRAM_SECONDS = 150.0
"""Limit for one program, slightly longer than the limit in main.c."""


class Runner:
    """A kmod-truth process in the guest; reads programs from its standard input."""

    def __init__(self, guest: Guest, command: str) -> None:
        self._process = subprocess.Popen(
            guest.connection.argv(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def run(self, program: Program) -> Outcome:
        """Run one program and return its outcome."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(program.text)
        process.stdin.flush()
        lines: list[str] = []
        # If the guest hangs, killing the local process ends readline().
        timer = threading.Timer(PROGRAM_SECONDS, process.kill)
        timer.start()
        try:
            while not (lines and lines[-1].startswith("end ")):
                line = process.stdout.readline()
                if not line:
                    lines.append("kmod-truth ended or hung")
                    break
                lines.append(line)
        finally:
            timer.cancel()
        return parse(lines)

    def close(self) -> None:
        """End the process in the guest by closing its input."""
        self._process.communicate(timeout=60)
