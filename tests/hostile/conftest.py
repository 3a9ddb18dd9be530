# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attacks, which need root: attackers are processes of another user."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.hostile.attacker import SCHEDULING
from tests.hostile.daemon import Daemon
from tests.hostile.siege import FIGURES, Guarded, Siege

HERE = os.path.dirname(__file__)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--attack-figures",
        type=Path,
        help="measure the training's speed before and during each attack, and write all figures to"
        " this JSON file",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    needs_root = pytest.mark.skip(
        reason="needs root: attackers run as another user than the daemon"
    )
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(needs_root)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if FIGURES:
        terminalreporter.section("attacks")
        for figures in FIGURES:
            terminalreporter.line(str(figures))
    file = terminalreporter.config.getoption("--attack-figures")
    if file is not None:
        file.write_text(json.dumps([asdict(figures) for figures in FIGURES]))


class Fortress:
    """A daemon with a managed training, shared by all attacks.

    After an attack that succeeded, a new daemon replaces this one, so that each attack begins with
    an intact daemon.
    """

    def __init__(self, measure_speed: bool) -> None:
        self._measure_speed = measure_speed
        self._daemon: Daemon | None = None
        self._guarded: Guarded | None = None

    def besiege(self, name: str) -> Siege:
        if self._daemon is None:
            self._daemon = Daemon()
            self._daemon.wait_ready()
            self._guarded = Guarded(self._daemon)
            self._guarded.manage()
            if self._measure_speed:
                self._guarded.pin()
                SCHEDULING["group_nice"] = 19
        return Siege(name, self._daemon, self._guarded, self._measure_speed)

    def fall(self) -> None:
        if self._guarded is not None:
            self._guarded.close()
        if self._daemon is not None:
            self._daemon.stop()
        self._daemon = self._guarded = None


@pytest.fixture(scope="session")
def fortress(request: pytest.FixtureRequest) -> Iterator[Fortress]:
    # This process does not import torch, so that the attackers forked from it are small.
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    made = Fortress(measure_speed=request.config.getoption("--attack-figures") is not None)
    yield made
    made.fall()


@pytest.fixture
def besieged(fortress: Fortress, request: pytest.FixtureRequest) -> Iterator[Siege]:
    """A daemon with a managed training, under observation until check()."""
    siege = None
    try:
        siege = fortress.besiege(request.node.name)
        yield siege
    finally:
        checked = siege is not None and siege.checked
        if siege is not None and not checked:
            siege.close()
        if not checked or request.node.name in _FAILED:
            fortress.fall()
    assert checked or request.node.name in _FAILED, "the test did not check the attack"


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon of the test's own, without a training."""
    started = Daemon()
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


_FAILED: set[str] = set()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        _FAILED.add(item.name)
