# SPDX-License-Identifier: Apache-2.0
"""Starts the workload and reads the lines that it prints."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("train.py")
EAGER = Path(__file__).parents[1] / "eager.py"
"""Starts the script without torch's compiler, whose import takes an emulated CPU 15 s."""
SHIM = ("-m", "sentineld.shim")

_STEP = re.compile(r"step (\d+) loss (\S+) seconds ([\d.]+)")


@dataclass(frozen=True)
class StepLine:
    """The workload's line about a step."""

    number: int
    loss: str  # a hexadecimal float
    seconds: float  # duration of the step
    at_s: float  # time.monotonic() at the arrival of the line


class TrainerError(RuntimeError):
    """The workload failed or timed out."""


class Trainer:
    """One training process."""

    def __init__(
        self,
        name: str,
        prefix: tuple[str, ...] = (),
        shim: bool = True,
        steps: int = 0,
        clock: Path | None = None,
    ):
        """prefix: a command to run the training with, such as numactl. steps: number of steps; with
        0, the training runs until kill(). clock: the device whose memory holds the clock that times
        the steps (class Clock in train.py); None: the operating system's clock."""
        self.name = name
        self._folder = tempfile.TemporaryDirectory(prefix="sentineld-demo-")
        self._go = Path(self._folder.name) / "go"
        self._lines: list[StepLine] = []
        self._output: list[str] = []
        self._changed = threading.Condition()
        self._imported = False
        command = [*prefix, sys.executable, *(SHIM if shim else ()), str(EAGER), str(SCRIPT)]
        command += ["--steps", str(steps)]
        command += ["--wait-file", str(self._go)]
        command += ["--clock", str(clock)] if clock is not None else []
        self.process = subprocess.Popen(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id of the training; it stays the same when the prefix (numactl) calls exec()."""
        return self.process.pid

    @property
    def steps(self) -> list[StepLine]:
        """The lines about all steps so far."""
        with self._changed:
            return list(self._lines)

    @property
    def losses(self) -> list[str]:
        """The losses by step, as hexadecimal floats."""
        return [line.loss for line in self.steps]

    def wait_imported(self, timeout_s: float = 300.0) -> None:
        """Wait for the end of the imports; the workload then waits for go()."""
        self._wait(lambda: self._imported, timeout_s, "did not finish its imports")

    def go(self) -> None:
        """Let the workload build the model and train."""
        self._go.touch()

    def wait_step(self, more: int = 1, timeout_s: float = 240.0) -> StepLine:
        """Wait until `more` further steps have ended; returns the last of them. timeout_s: time
        limit of a step."""
        with self._changed:
            number = len(self._lines) + more - 1
        return self.wait_for(number, more * timeout_s)

    def wait_for(self, number: int, timeout_s: float) -> StepLine:
        """Wait until the step with this number has ended, and return its line."""
        self._wait(lambda: len(self._lines) > number, timeout_s, f"did not reach step {number}")
        return self._lines[number]

    def join(self, timeout_s: float) -> None:
        """Wait for the exit. Raises TrainerError on a timeout or a status other than 0."""
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TrainerError(
                f"{self.name}: did not end within {timeout_s:.0f} s\n{self.output}"
            ) from None
        if status != 0:
            raise TrainerError(f"{self.name}: ended with status {status}\n{self.output}")
        self._folder.cleanup()

    def kill(self) -> None:
        """Kill the process."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._folder.cleanup()

    @property
    def output(self) -> str:
        """The last lines that the process printed."""
        return "".join(self._output[-30:])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._output.append(line)
                self._imported |= line == "waiting\n"
                if match := _STEP.match(line):
                    number, loss, seconds = match.groups()
                    self._lines.append(
                        StepLine(int(number), loss, float(seconds), time.monotonic())
                    )
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _wait(self, reached: Callable[[], bool], timeout_s: float, complaint: str) -> None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not reached():
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    raise TrainerError(f"{self.name}: {complaint}\n{self.output}")
                self._changed.wait(min(left, 1.0))
