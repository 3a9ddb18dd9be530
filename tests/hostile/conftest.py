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

from tests.hostile.attack import FIGURES, PAUSE_MS, PINNED_PAUSE_MS, Attack, ManagedTraining
from tests.hostile.attacker import SCHEDULING
from tests.hostile.cpus import OTHER_CPU, pin, unpin
from tests.hostile.daemon import Daemon, running

HERE = os.path.dirname(__file__)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--attack-figures",
        type=Path,
        help="prolong the attacks on the daemon that manages the training, repeat them as controls"
        " on a daemon that does not manage it, and write all figures to this JSON file",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "control" in metafunc.fixturenames and metafunc.config.getoption("--attack-figures"):
        metafunc.parametrize("control", (False, True), ids=("measured", "control"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    needs_root = pytest.mark.skip(reason="needs root: attackers and daemon run as different users")
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
    """A daemon with a managed training, shared by all attacks, and another daemon for control runs.

    After a failed test, a new training and new daemons replace the old ones, so that each attack
    begins with an intact daemon.
    """

    def __init__(self, measure_speed: bool) -> None:
        self._measure_speed = measure_speed
        self._daemons: dict[bool, Daemon] = {}
        self._managed_training: ManagedTraining | None = None

    def begin(self, name: str, control: bool) -> Attack:
        if self._managed_training is None:
            unpin()  # An earlier ManagedTraining.pin() may have pinned this process.
            pause_ms = PINNED_PAUSE_MS if self._measure_speed else PAUSE_MS
            self._managed_training = ManagedTraining(self._daemon(False), pause_ms)
            self._managed_training.manage()
            if self._measure_speed:
                self._managed_training.pin()
                pin([self._daemon(True).process.pid], OTHER_CPU)
                SCHEDULING["group_nice"] = 19
        return Attack(
            name,
            self._daemon(control),
            self._managed_training,
            control=control,
            long=self._measure_speed,
        )

    def _daemon(self, control: bool) -> Daemon:
        if control not in self._daemons:
            self._daemons[control] = Daemon()
            self._daemons[control].wait_ready()
        return self._daemons[control]

    def discard(self) -> None:
        if self._managed_training is not None:
            self._managed_training.close()
        for daemon in self._daemons.values():
            daemon.stop()
        self._daemons, self._managed_training = {}, None


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    # Look for torch without importing it: the attackers are forked from this process and would be
    # larger with torch.
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    made = Target(measure_speed=request.config.getoption("--attack-figures") is not None)
    yield made
    made.discard()


@pytest.fixture
def control() -> bool:
    """Whether to attack a daemon that does not manage the training; see pytest_generate_tests."""
    return False


@pytest.fixture
def attack(target: Target, control: bool, request: pytest.FixtureRequest) -> Iterator[Attack]:
    """An attack while a managed training runs. The attacked daemon is observed until check()."""
    attack = None
    try:
        attack = target.begin(_attack_name(request.node.name), control)
        yield attack
    finally:
        checked = attack is not None and attack.checked
        if attack is not None and not checked:
            attack.close()
        if not checked or request.node.name in _FAILED:
            target.discard()
    assert checked or request.node.name in _FAILED, "the test did not check the attack"


def _attack_name(test: str) -> str:
    """The test's name without the parameter `control`."""
    for name in ("measured", "control"):
        test = test.replace(f"[{name}]", "").replace(f"-{name}]", "]").replace(f"[{name}-", "[")
    return test


@pytest.fixture
def managed_training(attack: Attack, control: bool) -> ManagedTraining:
    """The training that the attacked daemon manages."""
    if control:
        attack.close()
        pytest.skip("needs the daemon that manages the training")
    assert attack.managed_training is not None
    return attack.managed_training


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    """A daemon for this test only, without a training."""
    with running() as started:
        yield started


_FAILED: set[str] = set()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.failed:
        _FAILED.add(item.name)
