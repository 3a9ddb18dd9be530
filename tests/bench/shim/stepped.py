# SPDX-License-Identifier: Apache-2.0
"""A training process that runs one step per request, with any allocator or under the shim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tests.bench.background import repeat_in_background
from tests.process_figures import memory_bytes

ROOT = Path(__file__).parents[3]
STEPPER = ("-m", "tests.bench.stepper")


class StepUse(NamedTuple):
    """Resources used by one step."""

    cpu_s: float
    minor_faults: int
    loss: str  # exact, in hexadecimal


class SteppedTraining:
    """One training process.

    Only one thread at a time may request steps.
    preload: library of an allocator to preload.
    socket_path: run under the shim, which connects to a daemon at this path.
    """

    def __init__(self, model: str, *, preload: str = "", socket_path: Path | None = None) -> None:
        under = () if socket_path is None else ("-m", "sentineld.shim")
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        environment |= {"LD_PRELOAD": preload} if preload else {}
        environment |= {"SENTINELD_SHIM_SOCKET": str(socket_path)} if socket_path else {}
        self._process = subprocess.Popen(
            [sys.executable, *under, *STEPPER, model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.pid = self._process.pid
        self.losses: list[str] = []
        self._before: StepUse | None = None

    def step(self) -> StepUse:
        """Run a step. Raises RuntimeError if the process exits during the step, or BrokenPipeError
        if it exited before the step."""
        if self._before is None:
            self._before = self._read()
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        now, before = self._read(), self._before
        self._before = now
        self.losses.append(now.loss)
        return StepUse(now.cpu_s - before.cpu_s, now.minor_faults - before.minor_faults, now.loss)

    def stepping(self) -> AbstractContextManager[None]:
        """Run steps in a background thread while the context is active."""
        return repeat_in_background(self.step)

    def max_rss_bytes(self) -> int:
        """Return the process's peak resident memory (VmHWM)."""
        return memory_bytes(self.pid, "VmHWM")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> StepUse:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a training ended with status {self._process.wait()}")
        return StepUse(**json.loads(line))
