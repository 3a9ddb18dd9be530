# SPDX-License-Identifier: Apache-2.0
"""bench-scrape: how long the daemon takes to answer a scrape of its metrics with many sessions.

    python3 -m tests.bench.scrape [--sessions N]

The daemon is real, and every session is managed. The trainings are toys: they speak the shim's
protocol, but have no torch and no tensors. Each has a process of its own and, while the scrapes are
measured, begins a step every STEP_S seconds. Writes build/bench/scrape.json. Exit status 0 if
the goal holds, 1 if it does not.

The goal limits the median of the elapsed times (LIMIT_S). The machine should therefore be idle: on
a busy machine, only the minimum is meaningful.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.bench.goals import at_most, goal_lines
from tests.bench.results import Json, exit_status, say, write
from tests.hostile.attacker import die_with_parent
from tests.hostile.daemon import Daemon, running
from tests.hostile.toy_training import ToyTraining, template_of
from tests.process_figures import memory_bytes
from tests.unit.workloads import Network

OUTPUT = Path(__file__).parents[2] / "build/bench/scrape.json"
SESSIONS = 50
SCRAPES = 100
PAUSE_S = 0.5
"""Pause between two scrapes. After an answer, the daemon computes no further answer for four times
the time that the answer took; see SCRAPING_SHARE in service/metrics_server.py."""
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.6",
    "Accept-Encoding": "gzip",
}
"""Headers of Prometheus's requests."""
LIMIT_S = 0.020
NETWORK = Network(bytes_per_s=20e9)
STEP_S = 0.5
EARLY_STEP_S = 0.1
"""Like STEP_S, but before the training is managed."""
FAST, POLICY = "30%", "interleave"
PATIENCE_S = 900.0


def train(daemon: Daemon) -> int:
    """Start a toy training in a process of its own; returns the process ID."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        die_with_parent(parent)
        training = ToyTraining(daemon.shims, NETWORK)
        while True:
            training.step()
            time.sleep(STEP_S if training.residency else EARLY_STEP_S)
    finally:
        os._exit(1)


def states(daemon: Daemon, pids: list[int]) -> list[str]:
    """The states of the sessions of these processes."""
    return [str(one["state"]) for one in daemon.status()["sessions"] if one["pid"] in pids]


def wait_for(daemon: Daemon, pids: list[int], state: str) -> None:
    """Wait until all sessions are in this state."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := states(daemon, pids)) != [state] * len(pids):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not all sessions are {state}: {found}")
        time.sleep(1)


def measure(sessions: int) -> Json:
    """Manage the sessions, and time scrapes."""
    template_of(NETWORK)  # computed once, before the processes are forked
    with ExitStack() as stack:
        daemon = stack.enter_context(running(plan_nice=0))
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        idle_s = times(url)
        pids = []
        for _ in range(sessions):
            pids.append(train(daemon))
            stack.callback(end, pids[-1])
        wait_for(daemon, pids, "registered")
        for pid in pids:
            daemon.ask("attach", pid=pid, fast=FAST, policy=POLICY)
        wait_for(daemon, pids, "managed")
        peak = min(one["peak_bytes"] for one in daemon.status()["sessions"])
        say(f"{sessions} sessions are managed; {SCRAPES} scrapes follow")
        times_s = times(url)
        text = page(url)
        if states(daemon, pids) != ["managed"] * len(pids):
            raise RuntimeError("sessions have ended during the scrapes")
        return {
            "sessions": sessions,
            "peak_bytes": peak,
            "samples": sum(not line.startswith("#") for line in text.splitlines()),
            "bytes": len(text),
            "scrape_s": spread(times_s),
            "scrape_without_sessions_s": spread(idle_s),
            "daemon_bytes": memory_bytes(daemon.process.pid, "VmRSS"),
            "goals": {"scrape, median, s": at_most(statistics.median(times_s), LIMIT_S)},
        }


def end(pid: int) -> None:
    """Kill a training."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def page(url: str) -> str:
    """The metrics, requested as Prometheus requests them."""
    with urllib.request.urlopen(urllib.request.Request(url, headers=HEADERS), timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def times(url: str) -> list[float]:
    """Seconds that each of the scrapes takes, from the connection to the end of the answer."""
    found = []
    for _ in range(SCRAPES):
        time.sleep(PAUSE_S)
        begin_s = time.perf_counter()
        page(url)
        found.append(time.perf_counter() - begin_s)
    return found


def spread(values: list[float]) -> Json:
    """Minimum, median, 90th percentile and maximum."""
    tenths = statistics.quantiles(values, n=10)
    return {
        "least": round(min(values), 5),
        "median": round(statistics.median(values), 5),
        "p90": round(tenths[-1], 5),
        "most": round(max(values), 5),
    }


def main(arguments: list[str]) -> int:
    """Measure, write and print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.bench.scrape")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    options = parser.parse_args(arguments)
    found = measure(options.sessions)
    write(OUTPUT, found)
    for name in ("sessions", "peak_bytes", "samples", "bytes", "daemon_bytes"):
        print(f"{name:<14} {found[name]}")
    for name in ("scrape_s", "scrape_without_sessions_s"):
        print(name, *(f"{key} {value:.4f}" for key, value in found[name].items()))
    print(*goal_lines(found["goals"]), sep="\n")
    return exit_status(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
