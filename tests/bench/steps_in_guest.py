# SPDX-License-Identifier: Apache-2.0
"""Profiles the demo's model repeatedly, measures the daemon's resource usage, and records a trace.

    python3 -m tests.bench.steps_in_guest ROUNDS

Needs root and a running sentineld. Prints a JSON object per line: progress
({"say": text}) and finally the result.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from tests.demo import control
from tests.demo.trainer import Trainer
from tests.process_figures import TICK_HZ, memory_bytes, stat_fields

PLAIN_STEPS = 3
MANAGED_STEPS = 3
METERED_STEPS = 2
FAST = "20%"
POLICY = "sentinel+spill"
POLL_SECONDS = 0.25
PROFILE_SECONDS = 600.0

TRACE = "/tmp/demo-model.npz"
RECORDED_STEPS = 2

_OBSERVED = re.compile(r"step (\d+) was observed by (\S+)")


@dataclass(frozen=True)
class Usage:
    """Resource usage of a process since it started."""

    user_seconds: float
    system_seconds: float  # the daemon uses most of its system time in move_pages()
    children_cpu_seconds: float  # user and system time of children that have exited
    resident_kib: int
    anonymous_kib: int
    peak_kib: int


def usage(pid: int) -> Usage:
    """Read a process's usage from /proc."""
    user, system, *of_children = stat_fields(pid)[10:14]
    resident, anonymous, peak = (
        memory_bytes(pid, name) >> 10 for name in ("VmRSS", "RssAnon", "VmHWM")
    )
    return Usage(
        user_seconds=user / TICK_HZ,
        system_seconds=system / TICK_HZ,
        children_cpu_seconds=sum(of_children) / TICK_HZ,
        resident_kib=resident,
        anonymous_kib=anonymous,
        peak_kib=peak,
    )


def daemon_pid() -> int:
    """Return the pid of the running daemon."""
    answer = subprocess.run(
        ["systemctl", "show", "--property=MainPID", "--value", "sentineld"],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(answer.stdout)


def say(text: str) -> None:
    """Print one line of progress."""
    print(json.dumps({"say": text}), flush=True)


def step_offset(trainer: Trainer) -> int:
    """Return the shim's number of a step minus the workload's number of the same step."""
    line = trainer.wait_step()
    return int(control.session(trainer.pid)["step"]) - (line.number + 1)


def wait_profiled(pid: int) -> int:
    """Wait until the session is managed; return the shim's number of the profiled step."""
    deadline = time.monotonic() + PROFILE_SECONDS
    sampled = None
    while True:
        row = control.session(pid)
        if match := _OBSERVED.match(row["reason"]):
            if match[2] != "module":
                raise control.ControlError(f"not profiled by the module: {row['reason']}")
            sampled = int(match[1])
        if row["state"] == "managed":
            break
        if row["state"] in ("registered", "ended") or time.monotonic() > deadline:
            raise control.ControlError(f"not managed: {row['state']}, {row['reason']}")
        time.sleep(POLL_SECONDS)
    if sampled is None:
        raise control.ControlError("managed, but the profiled step was not reported")
    return sampled


def one_round(trainer: Trainer, daemon: int, offset: int) -> dict[str, Any]:
    """Run plain, profiled, managed and metered steps, then detach; return the figures."""
    # skip this step: it may have begun before the detach at the end of the previous round
    trainer.wait_step()
    plain = [trainer.wait_step().seconds for _ in range(PLAIN_STEPS)]
    before = usage(daemon)
    control.attach(trainer.pid, POLICY, FAST)
    sampled = wait_profiled(trainer.pid) - offset
    managed_from = usage(daemon)
    managed, resident = [], []
    trainer.wait_step()
    begin, begin_s = usage(daemon), time.monotonic()
    for _ in range(MANAGED_STEPS):
        managed.append(trainer.wait_step().seconds)
        resident.append(usage(daemon).resident_kib)
    end, end_s = usage(daemon), time.monotonic()
    first = len(trainer.steps)
    control.meter(trainer.pid, METERED_STEPS)
    # the first line after the request belongs to a step that began before the request
    metered = [line.seconds for line in trainer.steps[first + 1 : first + 1 + METERED_STEPS]]
    control.ask("detach", pid=trainer.pid)
    seconds = {line.number: line.seconds for line in trainer.steps}
    return {
        "plain": plain,
        "profiled": seconds[sampled],
        "around": {str(n - sampled): seconds[n] for n in range(sampled - 3, sampled + 4)},
        "managed": managed,
        "metered": metered,
        "daemon": {
            "profiling_user_seconds": managed_from.user_seconds - before.user_seconds,
            "profiling_system_seconds": managed_from.system_seconds - before.system_seconds,
            "planning_children_cpu_seconds": managed_from.children_cpu_seconds
            - before.children_cpu_seconds,
            "managed_seconds": end_s - begin_s,
            "managed_user_seconds": end.user_seconds - begin.user_seconds,
            "managed_system_seconds": end.system_seconds - begin.system_seconds,
            "managed_resident_kib": resident,
            "end": asdict(end),
        },
    }


def sentinelctl(*arguments: str) -> str:
    """Run sentinelctl; return its output."""
    command = ["sentinelctl", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def agreement(pid: int) -> dict[str, Any]:
    """Record a trace of the model as TRACE; return how well the accesses that the module saw match
    those that the framework reported."""
    sentinelctl("record", str(pid), "-o", TRACE, "--steps", str(RECORDED_STEPS))
    found: dict[str, Any] = json.loads(sentinelctl("report", TRACE, "agreement", "--json"))
    return found


def main(arguments: list[str]) -> None:
    """Run all rounds in one training process."""
    rounds = int(arguments[0])
    daemon = daemon_pid()
    idle = usage(daemon)
    trainer = Trainer("bench")
    try:
        trainer.wait_imported()
        trainer.go()
        say("the workload has imported torch")
        offset = step_offset(trainer)
        done = []
        for number in range(1, rounds + 1):
            done.append(one_round(trainer, daemon, offset))
            say(f"round {number} of {rounds}: {json.dumps(done[-1])}")
        agreed = agreement(trainer.pid)
        say(f"agreement: {json.dumps(agreed)}")
    finally:
        trainer.kill()
    result = {"rounds": done, "daemon_idle": asdict(idle), "agreement": agreed}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
