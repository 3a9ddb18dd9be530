# SPDX-License-Identifier: Apache-2.0
"""Managed trainings that are stopped by SIGSTOP or frozen by their cgroup.

tests/vm/test_sessions.py stops a training whose pages are armed by the module.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.control.client import request
from tests.hostile.attack import Attack, ManagedTraining
from tests.hostile.attacker import Attacker, Say
from tests.hostile.toy_training import ToyTraining

STOP_S = 3.0
FROZEN_S = 120.0
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def freezer(tmp_path: Path) -> Iterator[Path]:
    """A group of the cgroup-v1 freezer."""
    folder = tmp_path / "freezer"
    folder.mkdir()
    if _libc.mount(b"none", bytes(folder), b"cgroup", 0, b"freezer") != 0:
        pytest.skip(f"needs cgroup v1's freezer: {os.strerror(ctypes.get_errno())}")
    group = folder / f"hostile-{os.getpid()}"
    try:
        group.mkdir()
        yield group
        (group / "freezer.state").write_text("THAWED")
        deadline_s = time.monotonic() + 120
        while True:
            for pid in (group / "tasks").read_text().split():
                with contextlib.suppress(OSError):
                    (folder / "tasks").write_text(pid)
            try:
                group.rmdir()
                break
            except OSError:
                assert time.monotonic() < deadline_s, "the group is not empty"
                time.sleep(0.05)
    finally:
        _libc.umount2(bytes(folder), 2)


def freeze(group: Path, pids: list[int]) -> None:
    for pid in pids:
        (group / "cgroup.procs").write_text(str(pid))
    (group / "freezer.state").write_text("FROZEN")
    deadline_s = time.monotonic() + FROZEN_S
    while (group / "freezer.state").read_text().strip() != "FROZEN":
        assert time.monotonic() < deadline_s, "the training does not freeze"
        time.sleep(0.02)


def be_managed(say: Say, shims: str, control: str) -> None:
    """Attach a training, and run it until it is managed, or registered again after an error. Report
    this state, then go on with the training."""
    training = ToyTraining(Path(shims))
    pid = os.getpid()

    def state() -> str:
        sessions = request(Path(control), "status")["sessions"]
        return next((str(one["state"]) for one in sessions if one["pid"] == pid), "")

    training.run(lambda: state() == "registered")
    with contextlib.suppress(SentinelError):
        request(Path(control), "attach", pid=pid, fast="20%", policy="sentinel+spill")
    training.run(lambda: state() in ("managed", "registered"))
    say(state())
    training.run(lambda: False, 600)


def managed_toys(attack: Attack, count: int) -> list[Attacker]:
    paths = str(attack.daemon.shims), str(attack.daemon.control)
    toys = [attack.start(be_managed, *paths) for _ in range(count)]
    assert "managed" in [toy.heard() for toy in toys]
    return toys


def test_trainings_stopped_by_a_signal(attack: Attack) -> None:
    toys = managed_toys(attack, 2)
    for toy in toys:
        toy.signal(signal.SIGSTOP)
    attack.hold(STOP_S)
    attack.check()


@pytest.mark.long
def test_trainings_frozen_by_their_cgroup(attack: Attack, freezer: Path) -> None:
    toys = managed_toys(attack, 2)
    freeze(freezer, [toy.pid for toy in toys])
    attack.before_release.append(lambda: thaw(freezer))
    attack.hold(STOP_S)
    attack.check()


def thaw(group: Path) -> None:
    (group / "freezer.state").write_text("THAWED")


@pytest.mark.long
def test_a_training_that_was_stopped_keeps_its_losses(
    attack: Attack, managed_training: ManagedTraining
) -> None:
    """SIGSTOP stops the managed training and, after STOP_S, SIGCONT continues it."""
    attack.stops_the_training = True
    os.kill(managed_training.pid, signal.SIGSTOP)
    attack.hold(STOP_S)
    os.kill(managed_training.pid, signal.SIGCONT)
    count = len(managed_training.losses())
    deadline_s = time.monotonic() + 240
    while len(managed_training.losses()) < count + 3:
        assert time.monotonic() < deadline_s, "the training does not continue"
        time.sleep(0.05)
    attack.check()


def test_a_training_that_was_frozen_keeps_its_losses(
    attack: Attack, managed_training: ManagedTraining, freezer: Path
) -> None:
    attack.stops_the_training = True
    freeze(freezer, [managed_training.pid])
    attack.hold(STOP_S)
    thaw(freezer)
    count = len(managed_training.losses())
    deadline_s = time.monotonic() + 240
    while len(managed_training.losses()) < count + 3:
        assert time.monotonic() < deadline_s, "the training does not continue"
        time.sleep(0.05)
    attack.check()
