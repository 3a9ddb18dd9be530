# SPDX-License-Identifier: Apache-2.0
"""Reading and reloading the daemon's whole configuration.

test_daemon.py covers the option --check, and tests/integration/test_reload.py the signal.
"""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.config import Config
from sentineld.machine.machine import Machine
from sentineld.service import configuration
from sentineld.service.configuration import Reloader, read_config
from tests.unit.emulated import machine


def test_the_options_are_applied(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('fast = "30%"\n')
    config = read_config(file, "emulated:cxl")
    assert (config.fast, config.tiers.emulated) == ("30%", "cxl")


@pytest.mark.parametrize(
    ("policy", "problem"),
    [("autoo", "no policy is named 'autoo'"), ("tpp", "tpp runs in the simulator only")],
)
def test_the_policies_of_rules_are_checked(tmp_path: Path, policy: str, problem: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'[[attach]]\npolicy = "auto"\n[[attach]]\npolicy = "{policy}"\n')
    with pytest.raises(SentinelError) as caught:
        read_config(file, None)
    assert caught.value.code == "bad-config"
    assert caught.value.message == f"{file}: attach rule 2: policy: {problem}"


class Reloading:
    """A machine on emulated tiers, and the reloader of its configuration file."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config.toml"
        self.machine: Machine = machine()
        self.reloader = Reloader(self.machine, self.file, "emulated:cxl")

    def reload(self, text: str) -> Config:
        """The machine's settings after a reload of a file with this text."""
        self.file.write_text(text)
        self.reloader.reload()
        return self.machine.config


@pytest.fixture
def reloading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Reloading:
    caplog.set_level(logging.INFO)
    return Reloading(tmp_path)


def test_a_reload_replaces_settings_that_need_no_restart(
    reloading: Reloading, caplog: pytest.LogCaptureFixture
) -> None:
    config = reloading.reload('fast = "30%"\n[[attach]]\nuser = 7\n')
    assert (config.fast, config.attach[0].user) == ("30%", "7")
    assert caplog.messages == ["the configuration was reloaded; changed: fast, attach"]
    assert reloading.reload("").attach == ()  # the file has no rule any more
    reloading.reload("")
    assert caplog.messages[-1] == "the configuration was reloaded; changed: nothing"
    assert reloading.reloader.problems == []


@pytest.mark.parametrize(
    "text", ['fast = "40%"\nplan_nice = 99\n', "fast = ", 'fast = "40%"\npolicy = "autoo"\n']
)
def test_an_invalid_file_changes_nothing(
    reloading: Reloading, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    before = reloading.reload('fast = "30%"\n')
    assert reloading.reload(text) is before
    (problem,) = reloading.reloader.problems
    assert problem.startswith("the configuration was not reloaded: ")
    assert caplog.messages[-1] == problem
    reloading.reload('fast = "30%"\n')
    assert reloading.reloader.problems == []


def test_settings_that_need_a_restart_stay_and_are_named(
    reloading: Reloading, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'metrics_port = 1\nfast = "30%"\n[tiers]\nemulated_threads = 9\n'
    config = reloading.reload(text)
    assert (config.metrics_port, config.tiers.emulated_threads) == (9464, 1)
    assert config.fast == "30%"
    problem = "changed settings need a restart of the daemon: metrics_port, tiers.emulated_threads"
    assert reloading.reloader.problems == [problem]
    assert caplog.messages[-1] == problem
    reloading.reload('fast = "30%"\n')
    assert reloading.reloader.problems == []


def test_an_internal_error_is_a_refused_reload(
    reloading: Reloading, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Config:
        raise RecursionError("too deep")

    with monkeypatch.context() as patch:
        patch.setattr(configuration, "read_config", fail)
        reloading.reload("")
    (problem,) = reloading.reloader.problems
    assert problem == "the configuration was not reloaded: internal error: too deep"
    assert reloading.reload('fast = "31%"\n').fast == "31%"


@pytest.mark.parametrize("text", ["", "fast = "])
def test_the_service_manager_is_told_when_a_reload_begins_and_ends(
    reloading: Reloading, manager: socket.socket, text: str
) -> None:
    before_us = time.monotonic_ns() // 1000
    reloading.reload(text)
    begun, time_us = manager.recv(100).decode().split("\nMONOTONIC_USEC=")
    assert begun == "RELOADING=1"
    assert before_us <= int(time_us) <= time.monotonic_ns() // 1000
    assert manager.recv(100) == b"READY=1"
