# SPDX-License-Identifier: Apache-2.0
"""SIGHUP makes a running daemon reload its configuration."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.unit.waiting import wait


def problems(daemon: Daemon) -> list[str]:
    found: list[str] = json.loads(daemon.ctl("status", "--json").stdout)["problems"]
    return found


def test_a_running_daemon_reloads_its_configuration(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_S)
        manager.bind(str(tmp_path / "notify"))
        daemon = Daemon(tmp_path, wrapper=("env", f"NOTIFY_SOCKET={tmp_path}/notify"))
        file = tmp_path / "config.toml"
        before = file.read_text()

        def told(message: bytes) -> None:
            while not manager.recv(1000).startswith(message):
                pass

        def reload(text: str) -> None:
            file.write_text(text)
            daemon.process.send_signal(signal.SIGHUP)
            told(b"RELOADING=1\nMONOTONIC_USEC=")
            told(b"READY=1")

        def until(done: Callable[[list[str]], bool]) -> None:
            wait(lambda: done(problems(daemon)))

        told(b"READY=1")
        at_start = problems(daemon)
        reload(before + "plan_nice = 99\n")
        until(lambda found: any("plan_nice = 99" in problem for problem in found))
        reload(before + "plan_processes = 3\n")
        until(lambda found: any(problem.endswith(": plan_processes") for problem in found))
        reload(before)
        until(lambda found: found == at_start)
        daemon.stop()
