# SPDX-License-Identifier: Apache-2.0
"""The shared budget: real trainings on emulated tiers, and a real daemon that divides it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_budgets import idle_process
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import TIERS, ManagedRun, wait
from tests.sentinelctl import refused

pytest.importorskip("torch")

MIB = 1 << 20
SHARED = 12 * MIB
REST = ("--rest", "100")
"""Options of a training: sleep 100 ms after each step, because plans for many budgets are made
while the trainings run."""
POLICY = ("--policy", "sentinel+spill")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    started = Daemon(tmp_path, *TIERS, config=f'shared_fast = "{SHARED}"\n')
    yield started
    started.stop()


def started(daemon: Daemon, kind: str, stack: ExitStack) -> ManagedRun:
    folder = daemon.folder / kind
    folder.mkdir()
    training = ManagedRun(folder, kind, alone=REST, daemon=daemon)
    stack.enter_context(closing(training))
    return training


def managed(runs: list[ManagedRun]) -> list[dict[str, Any]]:
    """The status of the sessions if all are managed and each has its share and its curve, else an
    empty list. Checks that neither the budgets nor the charged bytes add up to more than the shared
    budget."""
    found = [run.status() for run in runs]
    assert sum(one["budget_bytes"] for one in found) <= SHARED
    assert sum(one["charged_bytes"] for one in found) <= SHARED
    for one in found:
        assert one["state"] != "registered", one["reason"]
    settled = all(
        one["state"] == "managed"
        and one["share"]["slowdown"] is not None
        and one["budget_bytes"] == one["share"]["share_bytes"]
        for one in found
    )
    return found if settled else []


@pytest.mark.long
def test_trainings_share_a_budget_while_they_start_and_end(daemon: Daemon) -> None:
    with ExitStack() as stack:
        first = started(daemon, "perceptron", stack)
        assert daemon.ctl("attach", str(first.pid), *POLICY).returncode == 0
        [alone] = wait(lambda: managed([first]))
        assert alone["share"]["sessions"] == 1
        second = started(daemon, "transformer", stack)
        assert daemon.ctl("attach", str(second.pid), *POLICY).returncode == 0
        both = wait(lambda: managed([first, second]))
        for one in both:
            assert one["share"]["equal_bytes"] < SHARED
            assert one["share"]["relative_slowdown"] <= 1.25
        assert both[0]["budget_bytes"] < alone["budget_bytes"]
        assert "sessions share; an equal share is" in daemon.ctl("status").stdout
        url = f"http://127.0.0.1:{daemon.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            metrics = answer.read().decode()
        assert f"sentineld_shared_budget_bytes {float(SHARED)}\n" in metrics
        assert metrics.count("sentineld_share_slowdown_ratio{") == 2

        # Another weight, minimum or maximum takes effect without a new profile.
        done = daemon.ctl("attach", str(first.pid), "--max", "2MiB", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["session"]["share"]["most_bytes"] == 2 * MIB
        limited = wait(
            lambda: [one for one in managed([first, second])[:1] if one["budget_bytes"] <= 2 * MIB]
        )
        assert limited[0]["diverged_steps"] == both[0]["diverged_steps"]
        assert "shares the shared budget" in refused(
            daemon.ctl("attach", str(first.pid), "--fast", "20%"), "wrong-state"
        )
        assert daemon.ctl("attach", str(first.pid), "--max", "10GiB").returncode == 0
        second.check_losses()
        wait(lambda: [one for one in managed([first]) if one["budget_bytes"] > 2 * MIB])
        first.check_losses()


def test_impossible_terms_are_refused(daemon: Daemon) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(idle_process(daemon)) for _ in range(2))
        for options, error in (
            (("--min", "3MiB", "--max", "2MiB"), "usage"),
            (("--min", "13MiB"), "budget-too-large"),
            (("--weight", "0"), "usage"),
            (("--weight", "nan"), "usage"),
            (("--min", "lots"), "usage"),
            (("--weight", "2", "--fast", "20%"), "usage"),
        ):
            refused(daemon.ctl("attach", first, *options), error)
        assert daemon.ctl("attach", first, "--min", "8MiB").returncode == 0
        line = refused(daemon.ctl("attach", second, "--min", "5MiB"), "budget-too-large")
        assert "the other sessions' minimums of 8.0 MiB" in line
        # A process that runs no steps takes no memory from the others.
        shares = [one["share"] for one in daemon.sessions() or () if one["share"]]
        assert [(one["sessions"], one["share_bytes"]) for one in shares] == [(0, 0)]
        assert daemon.ctl("detach", first).returncode == 0
        assert daemon.ctl("attach", second, "--min", "5MiB").returncode == 0
