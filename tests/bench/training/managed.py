# SPDX-License-Identifier: Apache-2.0
"""A training with its own daemon, which manages it by one policy on emulated tiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.store import load_plan
from tests.bench.background import repeat_in_background
from tests.bench.traces import ROOT, Daemon, wait
from tests.bench.usage import Usage

FAST = "20%"
MANAGED_AFTER_S_MAX = 900.0
CORRECTED_AFTER_STEPS, CORRECTED_AFTER_S = 24, 12.0
"""Correcting a plan takes 2 steps to detect the deviation, 16 steps to measure, and some seconds to
plan."""
STEPS_AT_ONCE = 4


class Training:
    """One training process, pinned to a CPU.

    Only one thread at a time may request steps.
    socket_path: run under the shim, which connects to a daemon at this path.
    """

    def __init__(self, model: str, cpu: int, socket_path: Path | None = None) -> None:
        under = () if socket_path is None else ("-m", "sentineld.shim")
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        environment |= {"SENTINELD_SHIM_SOCKET": str(socket_path)} if socket_path else {}
        command = ["taskset", "-c", str(cpu), sys.executable, *under]
        self._process = subprocess.Popen(
            [*command, "-m", "tests.bench.turns", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.pid = self._process.pid  # taskset execs the training
        self.losses: list[str] = []

    def steps(self, count: int) -> list[Usage]:
        """Run `count` steps; return each one's usage. Raises RuntimeError if the process exited."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the empty read below reports the exit status
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a training ended with status {self._process.wait()}")
        taken = json.loads(line)
        self.losses += [loss for _, loss in taken]
        return [Usage(*used) for used, _ in taken]

    def stepping(self) -> AbstractContextManager[None]:
        """Run steps in the background during the context."""
        return repeat_in_background(lambda: self.steps(1))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Turn(NamedTuple):
    """One turn of a training: some unmeasured steps and a measured one."""

    used: Usage  # usage of the measured step
    daemon_s: float  # CPU seconds of the daemon during the whole turn
    span_s: float  # elapsed seconds of the whole turn


class ManagedTraining:
    """A model trained under a policy. The daemon inherits this process's CPUs."""

    def __init__(self, model: str, policy: str, tiers: str, cpu: int, folder: Path) -> None:
        self.policy = policy
        self._folder = folder
        self._daemon = Daemon(folder, "--tiers", f"emulated:{tiers}")
        self.training = Training(model, cpu, self._daemon.shim_socket)
        try:
            wait(lambda: self._found() is not None)
        except TimeoutError:
            self.close()
            raise

    def manage(self) -> str:
        """Attach and wait; return "" once the training is managed, else the reason why it is not.

        Raises RuntimeError.
        """
        try:
            self._ask("attach", pid=self.training.pid, fast=FAST, policy=self.policy)
        except SentinelError as error:
            return str(error)
        deadline_s = time.monotonic() + MANAGED_AFTER_S_MAX
        with self.training.stepping():
            while (session := self.session())["state"] not in ("managed", "registered"):
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"{self.policy}: still {session['state']}")
                time.sleep(0.5)
        return "" if session["state"] == "managed" else str(session["reason"])

    def session(self) -> dict[str, Any]:
        """Return the session's status. Raises RuntimeError, SentinelError."""
        found = self._found()
        if found is None:
            raise RuntimeError(f"{self.policy}: the daemon lost its session")
        return found

    def settle(self) -> None:
        """Train until the daemon has had time to correct the plan.

        The plan assumes the speed that the machine had during profiling. The speed now can differ.
        """
        began_s, steps = time.monotonic(), 0
        while (
            steps < CORRECTED_AFTER_STEPS
            or time.monotonic() - began_s < CORRECTED_AFTER_S
            or self.session()["state"] == "entering"
        ):
            self.training.steps(STEPS_AT_ONCE)
            steps += STEPS_AT_ONCE

    def turn(self, settle: int) -> Turn:
        """Run `settle` unmeasured steps and a measured one.

        Moves continued while the training was idle; the unmeasured steps undo their effect.
        """
        before_s, began_s = self._daemon_s(), time.monotonic()
        used = self.training.steps(settle + 1)[-1]
        return Turn(used, self._daemon_s() - before_s, time.monotonic() - began_s)

    def meter(self, steps: int) -> list[dict[str, Any]]:
        """Meter some managed steps. Raises RuntimeError, SentinelError."""
        with self.training.stepping():
            answer = self._ask("meter", pid=self.training.pid, steps=steps)
        metered: list[dict[str, Any]] = answer["steps"]
        return metered

    def saved(self) -> tuple[Plan, Profile]:
        """Return the live plan and its profile. Raises RuntimeError, SentinelError.

        A newer plan may be pending: the process adopts it only while it runs steps.
        """
        layout_id = self.session()["layout_id"]
        for file in (self._folder / "state" / "sessions").glob(f"*.{layout_id}.npz"):
            return load_plan(file)
        raise RuntimeError(f"{self.policy}: no plan is live")

    def close(self) -> None:
        """End the training and the daemon."""
        self.training.close()
        self._daemon.stop()

    def _found(self) -> dict[str, Any] | None:
        sessions: list[dict[str, Any]] = self._ask("status")["sessions"]
        return next((one for one in sessions if one["pid"] == self.training.pid), None)

    def _ask(self, verb: str, **arguments: Any) -> Any:
        """Send a control request, as sentinelctl does, without starting a process."""
        return request(self._daemon.control, verb, **arguments)

    def _daemon_s(self) -> float:
        """CPU seconds (user and system, all threads) that the daemon has used."""
        stat = Path(f"/proc/{self._daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
