# SPDX-License-Identifier: Apache-2.0
"""Attack: before the daemon starts, another user occupies its metrics port, or puts Python
modules into its working directory."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.control.client import request
from tests.hostile.attacker import USER, Attacker, Say
from tests.hostile.daemon import running
from tests.hostile.toy_training import ToyTraining
from tests.ports import free_port

MODULES = ("pickle", "numpy", "json", "logging", "sentineld", "scipy", "sitecustomize", "random")
RETRY_S = 300.0


def occupy(say: Say, port: int) -> None:
    """Listen on the metrics port before the daemon does."""
    held = socket.create_server(("127.0.0.1", port))
    say("occupied")
    signal.sigwait({signal.SIGUSR1})
    held.close()
    say("released")


def test_an_occupied_metrics_port_does_not_stop_the_service() -> None:
    port = free_port()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    attacker = Attacker(occupy, port)
    try:
        attacker.heard()
        with running(metrics_port=port) as daemon:
            assert "metrics" in daemon.log_tail()
            attacker.signal(signal.SIGUSR1)
            attacker.heard()
            # The daemon serves metrics once the port is free.
            deadline_s = time.monotonic() + RETRY_S
            while True:
                try:
                    url = f"http://127.0.0.1:{port}/metrics"
                    with urllib.request.urlopen(url, timeout=60) as reply:
                        assert b"sentineld_build_info" in reply.read()
                    break
                except OSError:
                    assert time.monotonic() < deadline_s, "no metrics although the port is free"
                    time.sleep(0.5)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        attacker.close()


@pytest.fixture
def trap() -> Iterator[Path]:
    """A folder of the attacker, with modules that leave a mark when they are imported."""
    with tempfile.TemporaryDirectory(prefix="trap-", dir="/tmp") as name:
        folder = Path(name)
        marks = folder / "marks"
        marks.mkdir()
        for module in MODULES:
            mark = marks / module
            (folder / f"{module}.py").write_text(
                f"import os\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n"
                f"raise ImportError('imported from the working directory')\n"
            )
        for path in (folder, *folder.rglob("*")):
            os.chown(path, USER, USER)
        folder.chmod(0o755)
        yield folder


def be_managed(say: Say, shims: str, control: str) -> None:
    """Train until a child process of the daemon has made a plan or has failed to make one."""
    training = ToyTraining(Path(shims))
    pid = os.getpid()

    def state() -> str:
        sessions = request(Path(control), "status")["sessions"]
        return next((str(one["state"]) for one in sessions if one["pid"] == pid), "")

    training.run(lambda: state() == "registered")
    request(Path(control), "attach", pid=pid, fast="20%", policy="static")
    training.run(lambda: state() == "attached")
    training.run(lambda: state() in ("managed", "registered"))
    sessions = request(Path(control), "status")["sessions"]
    say([(one["state"], one["reason"]) for one in sessions])


def test_planning_imports_nothing_from_the_working_directory(trap: Path) -> None:
    """The daemon starts its children with `python -P -m`; without -P, Python would search the
    working directory first.

    The test starts the daemon elsewhere and makes it change to the attacker's folder. This
    simulates a service whose WorkingDirectory is writable by another user.
    """
    start = (
        "import os, sys; sys.path.remove(''); sys.argv[0] = 'sentineld'\n"
        "from sentineld.daemon import main\n"
        f"os.chdir({str(trap)!r}); main()\n"
    )
    with running(command=("-c", start)) as daemon:
        attacker = Attacker(be_managed, str(daemon.shims), str(daemon.control))
        try:
            ((state, reason),) = attacker.heard()
        finally:
            attacker.close()
        marks = sorted(path.name for path in (trap / "marks").iterdir())
        assert not marks, f"{marks} were imported as root from the working directory"
        assert state == "managed", reason
