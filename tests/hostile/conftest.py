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

from tests.hostile.attack import FIGURES, Attack, ManagedTraining
from tests.hostile.attacker import SCHEDULING
from tests.hostile.daemon import Daemon
from tests.hostile.training_speed import unpin

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


class Target:
    """A daemon with a managed training, shared by all attacks.

    After an attack that succeeded, a new daemon replaces this one, so that each attack begins with
    an intact daemon.
    """

    def __init__(self, measure_speed: bool) -> None:
        self._measure_speed = measure_speed
        self._daemon: Daemon | None = None
        self._managed_training: ManagedTraining | None = None

    def begin(self, name: str) -> Attack:
        if self._daemon is None:
            unpin()  # A former target has pinned this process.
            self._daemon = Daemon()
            self._daemon.wait_ready()
            self._managed_training = ManagedTraining(self._daemon)
            self._managed_training.manage()
            if self._measure_speed:
                self._managed_training.pin()
                SCHEDULING["group_nice"] = 19
        return Attack(name, self._daemon, self._managed_training, self._measure_speed)

    def discard(self) -> None:
        if self._managed_training is not None:
            self._managed_training.close()
        if self._daemon is not None:
            self._daemon.stop()
        self._daemon = self._managed_training = None


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    # This process does not import torch, so that the attackers forked from it are small.
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    made = Target(measure_speed=request.config.getoption("--attack-figures") is not None)
    yield made
    made.discard()


@pytest.fixture
def attack(target: Target, request: pytest.FixtureRequest) -> Iterator[Attack]:
    """A daemon with a managed training, under observation until check()."""
    attack = None
    try:
        attack = target.begin(request.node.name)
        yield attack
    finally:
        checked = attack is not None and attack.checked
        if attack is not None and not checked:
            attack.close()
        if not checked or request.node.name in _FAILED:
            target.discard()
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
