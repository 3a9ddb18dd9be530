# SPDX-License-Identifier: Apache-2.0
"""Starts the real daemon as the attacked service, and measures its log and its resources."""

from __future__ import annotations

import grp
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from tests.hostile.attacker import GROUP
from tests.ports import free_port
from tests.process_figures import memory_bytes

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 300.0


class Daemon:
    """A daemon with its files in a folder that every user may enter."""

    def __init__(
        self,
        *options: str,
        descriptors: int = 0,
        command: Sequence[str] = ("-m", "sentineld.daemon"),
        **config: Any,
    ) -> None:
        """options: the daemon's command-line options. Without options, it uses emulated tiers.

        config: values of configuration keys.
        descriptors: limit of open descriptors (RLIMIT_NOFILE); 0 keeps the limit of the tests.
        command: the arguments with which the Python interpreter starts the daemon.
        """
        self.folder = Path(tempfile.mkdtemp(prefix="attacked-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.control = self.folder / "control.sock"
        self.shims = self.folder / "shim.sock"
        self.log = self.folder / "log"
        self.metrics_port = int(config.get("metrics_port", free_port()))
        keys = {
            "shim_socket": str(self.shims),
            "control_socket": str(self.control),
            "socket_group": grp.getgrgid(GROUP).gr_name,
            "state_dir": str(self.folder / "state"),
            "metrics_port": self.metrics_port,
            "ebpf": "off",
            **config,
        }
        file = self.folder / "config.toml"
        file.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in keys.items()))

        def limit() -> None:
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        options = options or ("--tiers", "emulated:cxl")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command, "--config", str(file), *options],
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                preexec_fn=limit,
                start_new_session=True,  # a scheduling group of its own, like a service
            )
        self._proc = Path(f"/proc/{self.process.pid}")

    def wait_ready(self) -> None:
        """Wait until the daemon answers."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.status()
                return
            except SentinelError:
                assert self.process.poll() is None, self.log_tail()
                assert time.monotonic() < deadline_s, "the daemon did not answer"
                time.sleep(0.05)

    def ask(self, verb: str, timeout_s: float = 60.0, **arguments: Any) -> Any:
        """Send a verb as root and return the answer. Raises SentinelError if the verb fails."""
        return request(self.control, verb, timeout_s, **arguments)

    def status(self, timeout_s: float = 60.0) -> Any:
        """The answer to status."""
        return self.ask("status", timeout_s)

    def session(self, pid: int) -> dict[str, Any] | None:
        """The session of a process, as `status` describes it; None if there is none."""
        found: list[dict[str, Any]] = [s for s in self.status()["sessions"] if s["pid"] == pid]
        return found[0] if found else None

    def alive(self) -> bool:
        """Whether the daemon runs and answers."""
        try:
            return self.process.poll() is None and bool(self.status(10.0))
        except SentinelError:
            return False

    def descriptors(self) -> int:
        """Number of open descriptors."""
        return len(os.listdir(self._proc / "fd"))

    def threads(self) -> int:
        """Number of threads."""
        return len(os.listdir(self._proc / "task"))

    def resident_bytes(self) -> int:
        """Resident memory now."""
        return memory_bytes(self.process.pid, "VmRSS")

    def peak_bytes(self) -> int:
        """Largest resident memory since reset_peak()."""
        return memory_bytes(self.process.pid, "VmHWM")

    def reset_peak(self) -> None:
        """Begin a new measurement of the peak."""
        (self._proc / "clear_refs").write_text("5")

    def log_bytes(self) -> int:
        """Size of the log."""
        return self.log.stat().st_size

    def log_tail(self, begin: int = 0) -> str:
        """The log from byte `begin` on, but at most its last 4,000 bytes."""
        with self.log.open("rb") as file:
            file.seek(max(begin, self.log_bytes() - 4000))
            return file.read().decode(errors="replace")

    def stop(self) -> None:
        """Stop the daemon, or kill it if it does not stop, and remove its files."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def running(*options: str, **arguments: Any) -> Iterator[Daemon]:
    """Start a daemon and yield it once it answers; stop it when the context ends. The arguments are
    those of Daemon."""
    daemon = Daemon(*options, **arguments)
    try:
        daemon.wait_ready()
        yield daemon
    finally:
        daemon.stop()


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
