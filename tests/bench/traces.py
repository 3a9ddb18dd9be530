# SPDX-License-Identifier: Apache-2.0
"""Record a trace of each of the nine models: `python -m tests.bench.traces [MODEL ...]`.

Runs the real daemon, shim and `sentinelctl record` on this machine. Needs neither a second tier
nor the kernel module; without the module, the traces contain only the accesses that the framework
reports. Writes build/bench/traces/MODEL.npz.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.models import MODELS
from tests.sentinelctl import SENTINELCTL

ROOT = Path(__file__).parents[2]
TRACES = ROOT / "build" / "bench" / "traces"
PATIENCE_S = 300.0


class Daemon:
    """A private daemon with its files in `folder`. options: command-line options."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.shim_socket = folder / "shim.sock"
        self.control = folder / "control.sock"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        config = folder / "config.toml"
        config.write_text(
            f'shim_socket = "{self.shim_socket}"\ncontrol_socket = "{self.control}"\n'
            f'state_dir = "{folder}/state"\nmetrics_port = {port}\nebpf = "off"\n'
            # a benchmark must not measure a policy other than the one that it names
            "policy_fallback = false\n"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sentineld.daemon", "--config", str(config), *options], cwd=ROOT
        )
        self.pid = self._process.pid
        wait(lambda: self.ctl("status").returncode == 0)

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run sentinelctl against this daemon."""
        command = [*SENTINELCTL, "--socket", str(self.control), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)

    def has_session(self, pid: int) -> bool:
        """Whether a process's shim has registered."""
        sessions = json.loads(self.ctl("status", "--json").stdout)["sessions"]
        return any(session["pid"] == pid for session in sessions)

    def stop(self) -> None:
        """Stop the daemon."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(timeout=PATIENCE_S)


def wait(done: Callable[[], bool]) -> None:
    """Wait until done() is true. Raises TimeoutError after PATIENCE_S."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline_s:
            raise TimeoutError("timed out")
        time.sleep(0.2)


def record(daemon: Daemon, model: str, file: Path, folder: Path, threads: int) -> None:
    """Train a model under the shim and record its trace into `file`. Raises RuntimeError,
    TimeoutError."""
    stop = folder / f"{model}.stop"
    command = [sys.executable, "-m", "sentineld.shim", "-m", "tests.bench.train", model, str(stop)]
    environment = {
        **os.environ,
        "SENTINELD_SHIM_SOCKET": str(daemon.shim_socket),
        "OMP_NUM_THREADS": str(threads),
    }
    training = subprocess.Popen(
        [*command, "--threads", str(threads)], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        wait(lambda: daemon.has_session(training.pid))
        done = daemon.ctl("record", str(training.pid), "-o", str(file), "--steps", "5")
        if done.returncode:
            raise RuntimeError(f"{model}: {done.stderr.strip()}")
        print(f"{model}\n{done.stdout}", flush=True)
    finally:
        stop.touch()
        training.wait(timeout=PATIENCE_S)


def main() -> None:
    """Record the chosen models one by one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", choices=[*sorted(MODELS), []])
    parser.add_argument("-o", "--output", type=Path, default=TRACES)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        daemon = Daemon(folder)
        try:
            for model in arguments.models or MODELS:
                file = arguments.output / f"{model}.npz"
                record(daemon, model, file, folder, arguments.threads)
        finally:
            daemon.stop()


if __name__ == "__main__":
    main()
