# SPDX-License-Identifier: Apache-2.0
"""An attack on a daemon: its attackers, and checks of its effects on the daemon and a training."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from sentineld.base.errors import SentinelError
from tests.hostile.attacker import USER, Attacker
from tests.hostile.cpus import OTHER_CPU, TRAINING_CPU, pin
from tests.hostile.daemon import Daemon, running
from tests.hostile.figures import Figures
from tests.integration.shim.daemon_side import Training

STEP_S = 120.0
"""Time within which the training must make a step. A step takes a few seconds at most, unless the
machine is very busy."""
ANSWER_S = 20.0
"""Limit for the time until `status` is answered. The goal is one second, and FIGURES contains the
measured time. The limit is higher because two test guests can run on the machine at the same
time."""
RESIDENT_BYTES = 120 << 20
LOG_BYTES_PER_S = 1e6 / 60
LOG_S_MIN = 10.0
"""An attack shorter than this may log as many bytes as an attack of this duration."""
SETTLE_S = 60.0
SLACK = 6
"""Number of additional descriptors that may be open after an attack, because the daemon's own work,
such as planning a correction, opens some. An attack that tries to leak descriptors makes more
attempts than this."""
STATUS_TIMEOUT_S = 45.0
LOOK_S = 0.1
HOLD_FACTOR = 3.0
"""An attack is prolonged by this factor if the training's speed is to be measured."""
SPEED_S_MIN = 2.0
"""The training's speed is not measured in attacks shorter than this: they contain too few steps."""
MODEL = "transformer"
PAUSE_MS = 3.0
"""Time that the training sleeps after each operation, so that it leaves CPU time to the attack."""
PINNED_PAUSE_MS = 1.0
"""PAUSE_MS of a training that has a CPU to itself."""

FIGURES: list[Figures] = []
"""The figures of all attacks so far."""


class ManagedTraining:
    """A managed training that runs during the attack."""

    def __init__(self, daemon: Daemon, pause_ms: float = PAUSE_MS) -> None:
        self._daemon = daemon
        self.training = Training(
            MODEL,
            socket_path=daemon.shims,
            stop=daemon.folder / "stop",
            alone=("--pause", str(pause_ms)),
        )
        self.pid = self.training.process.pid

    def manage(self) -> None:
        """Attach and wait until the training is managed."""
        _wait(lambda: self._daemon.session(self.pid) is not None, "registered")
        self._daemon.ask("attach", pid=self.pid, fast="20%", policy="sentinel+spill")
        _wait(lambda: self._state() == "managed", "managed")

    def managed(self) -> bool:
        """Whether the training is still managed after manage(). Also true while the daemon enters a
        corrected plan."""
        return self._state() in ("managed", "entering")

    def _state(self) -> str | None:
        session = self._daemon.session(self.pid)
        return None if session is None else str(session["state"])

    def losses(self) -> list[str]:
        """All losses so far."""
        return list(self.training._losses)

    def plain_losses(self, count: int) -> list[str]:
        """The first `count` losses of the same training without the shim. The training without the
        shim runs only while this method waits: otherwise it would take CPU time from an attack."""
        return self.training.plain_losses(count)

    def steps_per_s(self, begin_s: float, end_s: float) -> float:
        """Mean steps per second between two values of time.monotonic()."""
        times = list(self.training.times_s)  # copied, because a thread appends to times_s
        begun = np.interp([begin_s, end_s], times, np.arange(len(times)))
        return float(begun[1] - begun[0]) / max(end_s - begin_s, 1e-9)

    def pin(self) -> None:
        """Give the training a CPU to itself. The training's daemon and this process get another
        CPU. The attackers are forked from this process, so they use that other CPU, too."""
        pin([self.pid], TRAINING_CPU)
        pin([self._daemon.process.pid, os.getpid()], OTHER_CPU)

    def close(self) -> None:
        """Kill the training."""
        self.training.process.kill()
        self.training.process.wait()


class Observer:
    """Requests `status` repeatedly in a thread, LOOK_S after each answer."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stop = threading.Event()
        self.worst_s = 0.0
        self.asked = 0
        self.errors: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            begin_s = time.monotonic()
            try:
                self._daemon.status(STATUS_TIMEOUT_S)
            except SentinelError as error:
                self.errors.append(str(error))
            self.worst_s = max(self.worst_s, time.monotonic() - begin_s)
            self.asked += 1

    def stop(self) -> None:
        """Stop after the current request."""
        self._stop.set()
        self._thread.join()


class Attack:
    """One attack. check() ends the attack and compares its effects with the limits.

    managed_training: the training that runs during the attack.
    control: whether this is a control run, in which a daemon other than the attacked one manages
        this training.
    long: whether to prolong the attack by HOLD_FACTOR, to measure the training's speed.
    """

    def __init__(
        self,
        name: str,
        daemon: Daemon,
        managed_training: ManagedTraining | None,
        *,
        control: bool = False,
        long: bool = False,
    ) -> None:
        self.name = name
        self.control = control
        self.daemon = daemon
        self.managed_training = managed_training
        self.checked = False
        self.stops_the_training = False
        """Set by a test that stops the training on purpose: its speed is then not measured."""
        self._factor = HOLD_FACTOR if long else 1.0
        self.before_release: list[Callable[[], None]] = []
        """Functions that are called before the attackers are killed. They make it possible for the
        attackers to exit, for example by ending the system calls in which they are blocked."""
        self._attackers: list[Attacker] = []
        self._step_times = len(managed_training.losses()) if managed_training else 0
        self._descriptors = self.settled(daemon.descriptors)
        daemon.reset_peak()
        self.log_begin = daemon.log_bytes()
        self._begin_s = time.monotonic()
        self._observer = Observer(daemon)

    def start(self, function: Callable[..., None], *arguments: Any, user: int = USER) -> Attacker:
        """Start a process that attacks; see Attacker."""
        attacker = Attacker(function, *arguments, user=user)
        self._attackers.append(attacker)
        return attacker

    def hold(self, duration_s: float) -> None:
        """Let the attack go on for scaled_s(duration_s)."""
        time.sleep(self.scaled_s(duration_s))

    def scaled_s(self, duration_s: float) -> float:
        """duration_s, multiplied by HOLD_FACTOR if the training's speed is to be measured."""
        return duration_s * self._factor

    def settled(self, figure: Callable[[], int]) -> int:
        """The smallest of ten readings of a figure. Single readings can be too high, because each
        request for `status` adds a descriptor and a thread for a short time."""
        readings = []
        for _ in range(10):
            readings.append(figure())
            time.sleep(0.01)
        return min(readings)

    def check(self) -> None:
        """End the attack and check that it did no harm."""
        self._wait_for_step()
        self.checked = True
        end_s = time.monotonic()
        duration_s = end_s - self._begin_s
        daemon = self.daemon
        log_bytes = daemon.log_bytes() - self.log_begin
        self.release()
        problems = []
        left = self._left_descriptors()
        self._observer.stop()
        if daemon.process.poll() is not None:
            problems.append(f"the daemon ended with status {daemon.process.returncode}")
            peak = 0
        else:
            peak = daemon.peak_bytes()
        log_rate = log_bytes / max(duration_s, LOG_S_MIN)
        observer = self._observer
        if observer.errors:
            problems.append(f"{len(observer.errors)} requests failed: {observer.errors[0]}")
        if not observer.asked or observer.worst_s > ANSWER_S:
            problems.append(f"status took {observer.worst_s:.1f} s")
        if peak > RESIDENT_BYTES:
            problems.append(f"the daemon grew to {peak / 2**20:.0f} MiB")
        if log_rate > LOG_BYTES_PER_S:
            problems.append(f"the daemon logged {log_bytes} bytes in {duration_s:.1f} s")
        if left > SLACK:
            problems.append(f"{left} descriptors stay open")
        self._check_training(problems)
        steps = steps_per_s = None
        if self.managed_training is not None:
            steps = len(self.managed_training.losses()) - self._step_times
            if duration_s >= SPEED_S_MIN and not self.stops_the_training:
                steps_per_s = self.managed_training.steps_per_s(self._begin_s, end_s)
        FIGURES.append(
            Figures(
                attack=self.name,
                control=self.control,
                duration_s=duration_s,
                status_worst_s=observer.worst_s,
                status_requests=observer.asked,
                peak_bytes=peak,
                log_bytes_per_min=log_rate * 60,
                more_descriptors=left,
                steps=steps,
                steps_per_s=steps_per_s,
            )
        )
        print(FIGURES[-1])
        tail = "" if not problems else f"\nthe log's end:\n{daemon.log_tail(self.log_begin)}"
        assert not problems, "; ".join(problems) + tail

    def release(self) -> None:
        """Kill the attackers."""
        while self.before_release:
            self.before_release.pop()()
        for attacker in self._attackers:
            attacker.close()

    def close(self) -> None:
        """End the attack without a check, after a failure."""
        self.checked = True
        self.release()
        self._observer.stop()

    def _left_descriptors(self) -> int:
        """The number of open descriptors of the daemon, minus their number at the attack's start.

        Waits up to SETTLE_S until the number is at most SLACK. Returns 0 if the daemon has ended.
        """
        deadline_s = time.monotonic() + SETTLE_S
        while self.daemon.process.poll() is None:
            left = self.settled(self.daemon.descriptors) - self._descriptors
            if left <= SLACK or time.monotonic() > deadline_s:
                return left
            time.sleep(0.2)
        return 0

    def _wait_for_step(self) -> None:
        """Wait for a step of the training: an attack can be shorter than a step. If the training
        makes none, _check_training() reports it."""
        training = self.managed_training
        if training is not None and not self.stops_the_training:
            with contextlib.suppress(AssertionError):
                _wait(lambda: len(training.losses()) > self._step_times, "at its next step", STEP_S)

    def _check_training(self, problems: list[str]) -> None:
        """Add a problem if the training is not managed, has ended or has made no step, or if its
        losses differ from those without the shim."""
        managed_training = self.managed_training
        if managed_training is None or self.daemon.process.poll() is not None:
            return
        if not managed_training.managed():
            session = self.daemon.session(managed_training.pid)
            why = f"{session['state']}: {session['reason']}" if session else "gone"
            problems.append(f"the training is no longer managed: {why}")
        losses = managed_training.losses()
        if managed_training.training.process.poll() is not None:
            problems.append("the training has ended")
        elif losses != managed_training.plain_losses(len(losses)):
            problems.append("the losses differ from those without the shim")
        if len(losses) <= self._step_times:
            problems.append("the training made no step during the attack")


@contextlib.contextmanager
def attack_alone(name: str, **options: Any) -> Iterator[Attack]:
    """An attack on a new daemon, without a training; options: see Daemon."""
    with running(**options) as daemon:
        attack = Attack(name, daemon, None)
        try:
            yield attack
        finally:
            if not attack.checked:
                attack.close()


def each_kind(kinds: Iterable[str], quick: Container[str]) -> list[Any]:
    """The kinds of an attack as parameters of a test; only `make test-long` runs kinds that are not
    in `quick`."""
    return [kind if kind in quick else pytest.param(kind, marks=pytest.mark.long) for kind in kinds]


def _wait(done: Callable[[], bool], what: str, patience_s: float = 600.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline_s, f"the training is not {what}"
        time.sleep(0.1)
