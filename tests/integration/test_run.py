# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl run` of a distributed training with the real daemon: a session per rank."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.shim.daemon_side import ROOT
from tests.integration.shim.place import HERE, Place
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.sentinelctl import SENTINELCTL

RANKS = 2
SCRIPT = ROOT / "tests/integration/shim/compat.py"


@pytest.fixture
def place() -> Place:
    """Where the trainings run; tests/vm overrides this fixture."""
    pytest.importorskip("torch")
    return HERE


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    started = Daemon(tmp_path)
    yield started
    started.stop()


@pytest.mark.long
def test_each_rank_has_a_session_and_unchanged_losses(daemon: Daemon, place: Place) -> None:
    stop = daemon.folder / "stop"
    control, shim = place.path(daemon.control), place.path(daemon.folder / "shim.sock")
    ctl = [*SENTINELCTL[1:], "--socket", control]
    trained = [place.python, *place.ranks(RANKS, SCRIPT, "parallel", place.path(stop))]
    process = subprocess.Popen(
        place.command(
            [*ctl, "run", "--fast", "20%", "--", *trained], {"SENTINELD_SHIM_SOCKET": shim}
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        steps_begun: list[int] = []
        while len(steps_begun) < RANKS:
            assert time.monotonic() < deadline_s, "not all ranks have a session"
            sessions = json.loads(daemon.ctl("status", "--json").stdout)["sessions"]
            steps_begun = [one["step"] for one in sessions if one["step"] > 1]
            time.sleep(0.2)
    finally:
        stop.touch()
        losses, messages = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, messages
    # This machine has one node, so neither rank is managed; a single warning gives the reason.
    (warning,) = [line for line in messages.splitlines() if line.startswith("warning: ")]
    assert "tier" in warning
    steps = len(losses.split()) // RANKS
    assert steps > 1
    command = place.command(place.ranks(RANKS, SCRIPT, "parallel", str(steps)), {})
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(losses.split()) == sorted(plain.stdout.split())
