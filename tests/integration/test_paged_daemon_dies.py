# SPDX-License-Identifier: Apache-2.0
"""Daemons of a paged training are killed at random times; the last one is stopped for a while.

Meanwhile, another training pages to the same disk. The losses of both must not change.
"""

from __future__ import annotations

import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sentineld.config import Config
from sentineld.shim.runtime import WELCOME_S
from tests.integration.paged_run import DISK_RATES, disk_bytes, paged_from_start, tiers
from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import ManagedRun, wait
from tests.unit.shim.paged import pager_problem

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

OTHER = ROOT / "tests/integration/paged_train.py"
LIFE_S_MAX = 3.0
"""Longest life of a daemon. When a daemon is killed, it may be registering the trainings again, or
profiling, planning or managing one of them."""
STOP_S = max(WELCOME_S, Config().barrier_timeout_ms / 1000, 2.0) + 1.0
"""Longer than any time for which a training waits for its daemon. After 2 s the heartbeat is
stale."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.long)])
def test_daemons_are_killed_under_load(tmp_path: Path, kills: int) -> None:
    chance = random.Random(1)
    folder = tmp_path / "other"
    folder.mkdir()
    with ExitStack() as stack:
        daemons = [Daemon(tmp_path, *tiers(tmp_path), config=DISK_RATES)]
        stack.callback(lambda: daemons[-1].stop())
        other = paged_from_start(folder, "threads", daemon=daemons[0], script=OTHER, fast="6MiB")
        stack.callback(other.close)
        run = ManagedRun(tmp_path, "perceptron", daemon=daemons[0])
        stack.callback(run.close)
        stack.callback(lambda: daemons[-1].process.send_signal(signal.SIGCONT))
        run.manage("auto", "40%")
        before = disk_bytes(run), disk_bytes(other)
        for _ in range(kills):
            time.sleep(chance.uniform(0, LIFE_S_MAX))
            run.kill()
            steps = len(run.training.times_s)
            run.training.wait_losses(steps + 2)
            daemons.append(Daemon(tmp_path, *tiers(tmp_path), config=DISK_RATES))
            run.daemon = daemons[-1]
        wait(lambda: run.session() is not None and run.status()["state"] == "managed")
        run.daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(STOP_S)
        run.training.wait_losses(len(run.training.times_s) + 2)
        run.daemon.process.send_signal(signal.SIGCONT)
        wait(lambda: run.status()["state"] == "managed")
        for training, (read, written) in zip((run, other), before, strict=True):
            found = disk_bytes(training)
            assert found[0] > read
            assert found[1] > written
        print(f"{kills} daemons killed in {len(run.training.times_s)} steps")
        run.check_losses()
        other.check_losses()
