# SPDX-License-Identifier: Apache-2.0
"""SIGHUP makes a running daemon reload its configuration."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

from tests.integration.test_daemon import PATIENCE_S, Daemon


def problems(daemon: Daemon) -> list[str]:
    found: list[str] = json.loads(daemon.ctl("status", "--json").stdout)["problems"]
    return found


def test_a_running_daemon_reloads_its_configuration(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_S)
        manager.bind(str(tmp_path / "notify"))
        wrapper = ("env", f"NOTIFY_SOCKET={tmp_path}/notify")
        with Daemon(tmp_path, wrapper=wrapper) as daemon:
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

            told(b"READY=1")
            at_start = problems(daemon)
            reload(before + "plan_timeout_s = 0\n")
            assert "plan_timeout_s = 0" in problems(daemon)[-1]
            reload(before + "plan_processes = 3\n")
            assert problems(daemon)[-1].endswith(": plan_processes")
            reload(before)
            assert problems(daemon) == at_start
