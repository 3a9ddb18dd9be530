# SPDX-License-Identifier: Apache-2.0
"""The planning process: its limits, and its exit when the daemon exits."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sentineld.base.errors import SentinelError
from tests.unit.waiting import wait

REPOSITORY = Path(__file__).parents[3]
CHILD = [sys.executable, "-P", "-m", "sentineld.planner.child"]
MEMORY = 1 << 30
NICE = 3


@dataclass(frozen=True)
class Allocate:
    """A request that allocates count_bytes. Its answer is (nice level, oom_score_adj)."""

    count_bytes: int

    def answer(self) -> tuple[int, int]:
        np.ones(self.count_bytes, np.uint8)
        return os.nice(0), int(Path("/proc/self/oom_score_adj").read_text())


def answer_to(request: Allocate) -> object:
    done = subprocess.run(
        [*CHILD, str(os.getpid()), str(MEMORY), str(NICE)],
        input=pickle.dumps(request),
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    return pickle.loads(done.stdout)


def test_it_runs_niced_and_is_the_first_to_be_killed_for_memory() -> None:
    assert answer_to(Allocate(1)) == (min(os.nice(0) + NICE, 19), 1000)


def test_its_memory_is_limited() -> None:
    problem = answer_to(Allocate(2 * MEMORY))
    assert isinstance(problem, SentinelError)
    assert str(problem) == (
        "planning needs more than 1.0 GiB of memory (raise plan_memory_bytes, or use another"
        " policy)"
    )


def test_it_ends_with_the_daemon(tmp_path: Path) -> None:
    # The script below takes the daemon's place. It never sends a request to the planning process.
    said = tmp_path / "stderr"
    script = f"""
import os, subprocess
command = {CHILD!r} + [str(os.getpid()), "{MEMORY}", "{NICE}"]
with open({str(said)!r}, "w") as log:
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=log)
print(child.pid, flush=True)
child.wait()
"""
    daemon = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert daemon.stdout is not None
    child = Path("/proc") / daemon.stdout.readline().strip()
    wait(lambda: "1000" in (child / "oom_score_adj").read_text())
    daemon.kill()
    daemon.wait()
    wait(lambda: not _runs(child))
    assert said.read_text() == ""


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_does_not_begin_without_its_daemon() -> None:
    done = subprocess.run(
        [*CHILD, "1", str(MEMORY), str(NICE)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert done.returncode not in (0, -signal.SIGKILL)
    assert done.stderr == "the daemon ended before the planning process began\n"
