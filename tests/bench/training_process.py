# SPDX-License-Identifier: Apache-2.0
"""A training in a process of its own, which runs steps on request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress

from tests.bench.background import repeat_in_background
from tests.bench.traces import ROOT
from tests.bench.usage import Usage


class TrainingEndedError(RuntimeError):
    """The training process exited, or was killed, while it ran steps."""


class Training:
    """One training process with one torch thread.

    Only one thread at a time may request steps.
    """

    def __init__(
        self,
        model: str,
        prefix: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        """prefix: command that runs the training by exec(), so that the process id stays the same.
        environment: variables that the training gets in addition to those of this process; with
        SENTINELD_SHIM_SOCKET, it runs under the shim. options: command-line options of
        tests/bench/turns.py."""
        added = environment or {}
        under = ("-m", "sentineld.shim") if "SENTINELD_SHIM_SOCKET" in added else ()
        self._process = subprocess.Popen(
            [*prefix, sys.executable, *under, "-m", "tests.bench.turns", model, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **added},
        )
        self.pid = self._process.pid
        self.losses: list[str] = []

    def steps(self, count: int) -> list[Usage]:
        """Run `count` steps; return the usage of each step. Raises TrainingEndedError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended: readline() below returns ""
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            raise TrainingEndedError(f"the training ended with {how}")
        taken = json.loads(line)
        self.losses += [loss for _, loss in taken]
        return [Usage(*used) for used, _ in taken]

    def stepping(self) -> AbstractContextManager[None]:
        """Run steps in a background thread while the context is active."""
        return repeat_in_background(lambda: self.steps(1))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process ended before it read a request
            self._process.stdin.close()
        self._process.wait()


def pinned(cpu: int) -> tuple[str, ...]:
    """The prefix (see Training) with which a training runs on this CPU only."""
    return ("taskset", "-c", str(cpu))
