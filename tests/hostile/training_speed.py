# SPDX-License-Identifier: Apache-2.0
"""Measures how much an attack slows a training down, apart from the effect of shared CPUs.

Even without a daemon, any program slows the training down if both share a CPU, a core or caches.
Therefore the training has a CPU to itself, and the daemon and the attackers share another CPU. The
speed during an attack is compared with the speed beside an ordinary program that uses the other CPU
to the same extent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.hostile.attacker import Attacker, Say

TRAINING_CPU, OTHER_CPU = 0, 1
REFERENCE_S = 5.0
HOLD_FACTOR = 3.0
"""An attack lasts this many times as long as in the tests."""
DURATION_S_MIN = 2.0
"""In a shorter attack, the training runs too few steps to measure its speed."""

StepsPerS = Callable[[float, float], float]
"""Speed between two times of time.monotonic()."""


class Reference(NamedTuple):
    """The training's speed, and the share of the measured time in which the other CPU was busy."""

    use: float
    steps_per_s: float


class TrainingSpeed:
    """The constructor measures two reference speeds; the attack begins when it returns."""

    def __init__(self, steps_per_s: StepsPerS) -> None:
        self._steps_per_s = steps_per_s
        self._idle = self._reference()
        program = Attacker(keep_busy)
        try:
            self._busy = self._reference()
        finally:
            program.close()
        self._attack = CpuUse()

    def expected_steps_per_s(self, duration_s: float) -> float | None:
        """Return the speed that the training would have if a harmless program kept the other CPU as
        busy as the attack did.

        Returns None if the attack was too short.
        """
        if duration_s < DURATION_S_MIN:
            return None
        idle, busy = self._idle, self._busy
        share = (self._attack.share() - idle.use) / max(busy.use - idle.use, 0.01)
        share = min(max(share, 0.0), 1.0)
        return idle.steps_per_s + share * (busy.steps_per_s - idle.steps_per_s)

    def _reference(self) -> Reference:
        use, begin_s = CpuUse(), time.monotonic()
        time.sleep(REFERENCE_S)
        return Reference(use.share(), self._steps_per_s(begin_s, time.monotonic()))


class CpuUse:
    """Use of the other CPU since this object was constructed."""

    def __init__(self) -> None:
        self._begin_s, self._begin_ticks = time.monotonic(), _busy_ticks()

    def share(self) -> float:
        """Busy time divided by elapsed time."""
        busy_s = (_busy_ticks() - self._begin_ticks) / os.sysconf("SC_CLK_TCK")
        return busy_s / (time.monotonic() - self._begin_s)


def _busy_ticks() -> int:
    """Busy time of the other CPU in clock ticks; see proc_stat(5)."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{OTHER_CPU}":
            user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, fields)
            return user + nice + system + irq + softirq
    raise RuntimeError(f"the machine has no CPU {OTHER_CPU}")


def pin(pids: list[int], cpu: int) -> None:
    """Restrict all threads of the processes to a CPU."""
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def unpin() -> None:
    """Let this process, and the processes that it forks from now on, use all CPUs."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


def keep_busy(_: Say) -> None:
    """Pass data through a socket without end, as a client and a server do."""
    here, there = socket.socketpair()
    text = b"x" * 4096
    while True:
        for _ in range(16):
            here.send(text)
        for _ in range(16):
            there.recv(len(text)).decode().split("y")
