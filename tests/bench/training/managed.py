# SPDX-License-Identifier: Apache-2.0
"""A training with its own daemon, which manages it under one policy on emulated or paged tiers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from sentineld.model.plan import Plan
from sentineld.model.profile import Profile
from sentineld.plan.store import load_plan
from tests.bench.traces import Daemon, wait
from tests.bench.training_process import Training
from tests.bench.usage import Usage
from tests.process_figures import cpu_seconds

WARM_UP_STEPS = 3
"""After this many steps under a live plan, all pages that were born before the plan became live are
where the plan places them."""
MANAGED_AFTER_S_MAX = 900.0
CORRECTED_AFTER_STEPS, CORRECTED_AFTER_S = 24, 12.0
"""Correcting a plan takes 2 steps to detect that a bandwidth or a time differs from the assumed
one, 16 steps to measure it (see sentineld/plan/correct.py), and some seconds to plan."""
STEPS_AT_ONCE = 4


class Turn(NamedTuple):
    """One turn of a training: some unmeasured steps and a measured one."""

    used: Usage  # usage of the measured step
    daemon_s: float  # CPU seconds of the daemon during the whole turn
    span_s: float  # elapsed seconds of the whole turn


@dataclass(frozen=True)
class Setup:
    """How a training is started and managed."""

    policy: str
    tiers: str  # the daemon's option --tiers
    fast: str = "20%"
    prefix: tuple[str, ...] = ()  # see Training.__init__()
    environment: Mapping[str, str] = field(default_factory=dict)  # additional variables


class ManagedTraining:
    """A training with a daemon of its own. The daemon inherits this process's CPU affinity."""

    def __init__(self, model: str, setup: Setup, folder: Path) -> None:
        self.policy = setup.policy
        self._fast = setup.fast
        self._folder = folder
        self._daemon = Daemon(folder, "--tiers", setup.tiers)
        environment = {**setup.environment, "SENTINELD_SHIM_SOCKET": str(self._daemon.shim_socket)}
        self.training = Training(model, setup.prefix, environment)
        try:
            wait(lambda: self._found() is not None)
        except TimeoutError:
            self.close()
            raise

    def manage(self) -> str:
        """Attach and wait; return "" once the training is managed, else the reason why it is not.

        Raises RuntimeError, SentinelError.
        """
        try:
            self._ask("attach", pid=self.training.pid, fast=self._fast, policy=self.policy)
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

        The plan assumes the machine's speed during profiling. This speed may have changed since.
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

        Between two turns, the training pauses while the other trainings take theirs, but the daemon
        goes on moving its pages. The unmeasured steps undo the effect of these moves.
        """
        before_s, began_s = self.daemon_cpu_s(), time.monotonic()
        used = self.training.steps(settle + 1)[-1]
        return Turn(used, self.daemon_cpu_s() - before_s, time.monotonic() - began_s)

    def meter(self, steps: int) -> list[dict[str, Any]]:
        """Meter some managed steps. Raises RuntimeError, SentinelError."""
        with self.training.stepping():
            answer = self._ask("meter", pid=self.training.pid, steps=steps)
        metered: list[dict[str, Any]] = answer["steps"]
        return metered

    def saved(self) -> tuple[Plan, Profile]:
        """Return the live plan and its profile. Raises RuntimeError, SentinelError.

        The live plan need not be the newest one: a plan becomes live only while the process runs
        steps. The plan's file is therefore found by the id of the live layout.
        """
        layout_id = self.session()["layout_id"]
        for file in (self._folder / "state" / "sessions").glob(f"*.{layout_id}.npz"):
            return load_plan(file)[:2]
        raise RuntimeError(f"{self.policy}: no plan is live")

    def daemon_cpu_s(self) -> float:
        """CPU seconds that the daemon has used."""
        return cpu_seconds(self._daemon.pid)

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
