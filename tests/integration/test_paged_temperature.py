# SPDX-License-Identifier: Apache-2.0
"""A training on paged tiers and a process of policy `temperature`, whose slow tier is swap, share
one budget: the fast tier of both is the machine's memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from sentineld.control.client import request
from tests.integration.hot_cold import MIB, TOTAL_MIB, Program, build, daemon_with_swap, wait
from tests.integration.paged_run import DISK_RATES
from tests.integration.test_daemon import PATIENCE_S, Daemon
from tests.integration.test_emulated import ManagedRun
from tests.sentinelctl import refused
from tests.unit.shim.paged import pager_problem

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="swap can be enabled by root only"),
    pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or ""),
    pytest.mark.alone,
]

SHARED = 32 * MIB
HOT_MIB = 12
POLICY = ("--policy", "sentinel+spill")  # needs less time to plan than auto
REST = ("--rest", "100")  # sleep 100 ms after each step: leaves CPU time for planning


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    config = f'shared_fast = "{SHARED}"\n{DISK_RATES}'
    with daemon_with_swap("zram", tmp_path, f"paged:{tmp_path}", config) as started:
        yield started


def test_a_training_and_a_process_over_swap_share_a_budget(daemon: Daemon) -> None:
    with ExitStack() as stack:
        program = Program(build(daemon.folder), TOTAL_MIB, HOT_MIB)
        stack.callback(program.close)
        before = program.tell("sum")
        line = refused(daemon.ctl("attach", program.pid), "not-a-shim-process")
        assert "--policy temperature" in line
        done = daemon.ctl("attach", program.pid, "--policy", "temperature", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["session"]["share"]["sessions"] == 1
        # Without the option --policy, a managed process keeps its policy.
        again = daemon.ctl("attach", program.pid, "--weight", "1")
        assert again.returncode == 0, again.stderr
        training = ManagedRun(daemon.folder, "perceptron", alone=REST, daemon=daemon)
        stack.enter_context(closing(training))
        assert daemon.ctl("attach", str(training.pid), *POLICY).returncode == 0
        pids = [program.process.pid, training.pid]

        def settled() -> list[dict[str, Any]]:
            sessions = request(daemon.control, "status", PATIENCE_S)["sessions"]
            found = [next(one for one in sessions if one["pid"] == pid) for pid in pids]
            assert found[1]["state"] != "registered", found[1]["reason"]
            assert sum(one["budget_bytes"] for one in sessions) <= SHARED
            whole = all(
                one["state"] == "managed"
                and one["share"]["slowdown"] is not None
                and one["share"]["sessions"] == 2
                and one["budget_bytes"] == one["share"]["share_bytes"]
                for one in found
            )
            return found if whole else []

        wait(
            lambda: settled() and program.resident_share(0, HOT_MIB) > 0.95,
            "the sessions do not get their shares, or the hot set is not in memory",
        )
        assert "run time: 1." in daemon.ctl("status").stdout
        assert program.tell("sum") == before
        training.check_losses()
        wait(
            lambda: _budget(daemon, program) > 0.9 * SHARED,
            "the memory of a training that has ended is not used",
        )
        assert program.tell("sum") == before


def _budget(daemon: Daemon, program: Program) -> int:
    found = daemon.session(program.process.pid)
    assert found is not None
    budget_bytes: int = found["budget_bytes"]
    return budget_bytes
