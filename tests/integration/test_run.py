# SPDX-License-Identifier: Apache-2.0
"""`sentinelctl run` of a distributed training, with the real daemon: a session for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import Daemon

pytest.importorskip("torch")

RANKS = 2
PATIENCE_S = 180
SCRIPT = ROOT / "tests/integration/shim/compat.py"


def torchrun(until: str) -> list[str]:
    options = ["--nproc-per-node", str(RANKS), "--standalone", "--no-python"]
    script = [sys.executable, str(SCRIPT), "parallel", until]
    return [sys.executable, "-m", "torch.distributed.run", *options, *script]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    started = Daemon(tmp_path)
    yield started
    started.stop()


@pytest.mark.long
def test_each_rank_is_a_session_and_computes_what_it_does_without_us(daemon: Daemon) -> None:
    stop = daemon.folder / "stop"
    ctl = ["-c", "from sentineld.cli import main; main()", "--socket", str(daemon.control)]
    process = subprocess.Popen(
        [sys.executable, *ctl, "run", "--fast", "20%", "--", *torchrun(str(stop))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SENTINELD_SHIM_SOCKET": str(daemon.folder / "shim.sock")},
    )
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        trained: list[int] = []
        while len(trained) < RANKS:
            assert time.monotonic() < deadline_s, "not all ranks have a session"
            sessions = json.loads(daemon.ctl("status", "--json").stdout)["sessions"]
            trained = [one["pid"] for one in sessions if one["step"] > 1]
            time.sleep(0.2)
    finally:
        stop.touch()
        losses, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    # One node: each is told why it is not managed, in one line for both.
    (warning,) = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert "tier" in warning
    steps = len(losses.split()) // RANKS
    assert steps > 1
    plain = subprocess.run(torchrun(str(steps)), capture_output=True, text=True, check=True)
    assert sorted(losses.split()) == sorted(plain.stdout.split())
