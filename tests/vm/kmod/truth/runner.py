# SPDX-License-Identifier: Apache-2.0
"""Runs programs in a guest, one after the other, by one process that lives for all of them."""

from __future__ import annotations

import subprocess
import threading

from tests.vm.guest import Guest

from .outcome import Outcome, parse
from .programs import Program

PROGRAM_SECONDS = 150.0
"""A little more than the guest's own limit for a program."""


class Runner:
    """A `kmod-truth` process in the guest, fed by its standard input."""

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
        """Run one program and wait for what came of it."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(program.text)
        process.stdin.flush()
        lines: list[str] = []
        # A guest that hangs says nothing more: the pipe is closed for it.
        timer = threading.Timer(PROGRAM_SECONDS, process.kill)
        timer.start()
        try:
            while not (lines and lines[-1].startswith("end ")):
                line = process.stdout.readline()
                if not line:
                    lines.append("the guest's program is gone")
                    break
                lines.append(line)
        finally:
            timer.cancel()
        return parse(lines)

    def close(self) -> None:
        """End the process in the guest: its input ends."""
        self._process.communicate(timeout=60)
