# SPDX-License-Identifier: Apache-2.0
"""Checks of the daemon and of the shim's C library."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sentineld.doctor import service
from sentineld.doctor.findings import Status, System
from tests.unit.files import write


def test_no_daemon(system: System, tmp_path: Path) -> None:
    found = service.daemon(replace(system, daemon=service.ask(tmp_path / "none.sock")))
    assert (found.status, found.code) == (Status.FAIL, "daemon-unreachable")


def test_a_daemon_that_hangs_up_is_not_ok(system: System, tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        found = service.daemon(replace(system, daemon=service.ask(path)))
    assert found.status is Status.FAIL


@pytest.mark.parametrize(
    ("problem", "status"),
    [("", Status.OK), ("cannot serve metrics on 127.0.0.1:9464", Status.WARN)],
)
def test_an_occupied_metrics_port_is_a_limitation(
    system: System, problem: str, status: Status
) -> None:
    answer = {"version": "1.0", "pid": 7, "metrics_problem": problem}
    found = service.daemon(replace(system, daemon=answer))
    assert found.status is status
    assert problem in found.cause


def test_shim_library(system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SENTINELD_SHIM_LIBRARY", str(tmp_path / "libx.so"))
    assert service.shim_library(system).status is Status.FAIL
    write(tmp_path, "libx.so", "")
    assert service.shim_library(system).status is Status.OK
