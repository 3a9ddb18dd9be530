# SPDX-License-Identifier: Apache-2.0
"""Paged tiers: an unprivileged real daemon, and real trainings whose pages are in a file.

tests/unit/shim/pager tests the pager alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.memory_limit import limited_command
from tests.integration.paged_run import DISK_RATES, manage, paging, tiers, wait_steps
from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import REST, ManagedRun, wait
from tests.process_figures import anonymous_peak_bytes
from tests.sentinelctl import SENTINELCTL, refused
from tests.unit.shim.paged import PAGE, pager_problem

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

Start = Callable[..., ManagedRun]

TRAIN = ROOT / "tests/integration/shim/train.py"
LARGE_BYTES = 288 << 20


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ManagedRun] = []

    def start_one(
        *arguments: str, config: str = DISK_RATES, alone: tuple[str, ...] = REST
    ) -> ManagedRun:
        run = ManagedRun(tmp_path, *arguments, alone=alone, tiers=tiers(tmp_path), config=config)
        started.append(run)
        return started[-1]

    yield start_one
    for run in started:
        run.close()


def test_a_training_stays_within_its_budget(start: Start, tmp_path: Path) -> None:
    run = start("perceptron", config="")  # without DISK_RATES, the daemon measures the disk
    status = run.daemon.ctl("status").stdout
    assert f"tier 1 a file in {tmp_path}" in status
    session = manage(run, "static", "40%")
    # The budget covers the pager's frames and the tensors that are not paged.
    assert paging(run)["budget_pages"] * PAGE <= session["budget_bytes"]
    wait(lambda: paging(run)["bytes_written"] > session["peak_bytes"])
    assert paging(run)["bytes_read"] > 0
    assert "accesses waited for a page" in run.daemon.ctl("status").stdout
    assert not list(tmp_path.glob("state/*.page*")), "the file has a name"
    for step in run.meter(3):
        assert 0 < step["fast_accesses"] <= step["accesses"]
    with urllib.request.urlopen(f"http://127.0.0.1:{run.daemon.metrics_port}/metrics") as answer:
        scraped = answer.read().decode()
    assert 'sentineld_paging_bytes_total{direction="written"' in scraped
    line = refused(run.daemon.ctl("plan", "show", str(run.pid), "--bound"), "wrong-state")
    assert "does not apply to paged tiers" in line
    assert run.daemon.ctl("plan", "show", str(run.pid)).returncode == 0
    run.check_losses()


def test_planned_moves_use_the_pager(start: Start) -> None:
    pytest.importorskip("scipy")
    run = start("perceptron", alone=())  # no sleep, so that pages move during the steps
    run.manage("auto", "40%")
    # On a busy machine, the moves of one step can be carried out during the next step. So the moves
    # of several steps are added up.
    assert sum(step["moved_bytes"] for step in run.meter(4)) > 0
    run.check_losses()


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.long)])
def test_the_training_needs_no_daemon(start: Start, tmp_path: Path, kills: int) -> None:
    """Daemons are killed one after the other, and the last one is stopped for a while."""
    run = start("perceptron")
    manage(run, "static", "40%")
    for _ in range(kills):
        run.kill()
        run.training.wait_losses(len(run.training.times_s) + 3)
        run.daemon = Daemon(tmp_path, *tiers(tmp_path), config=DISK_RATES)
        wait(lambda: run.session() is not None and run.status()["state"] == "managed")
        wait_steps(run, 3)
        paging(run)
    run.daemon.process.send_signal(signal.SIGSTOP)
    run.training.wait_losses(len(run.training.times_s) + 3)
    run.daemon.process.send_signal(signal.SIGCONT)
    wait_steps(run, 3)
    run.check_losses()


def test_a_detached_training_keeps_paging(start: Start) -> None:
    run = start("perceptron")
    manage(run, "static", "40%")
    done = run.daemon.ctl("detach", str(run.pid))
    assert done.returncode == 0, done.stderr
    before = paging(run)["faults"]
    wait_steps(run, 5)
    wait(lambda: paging(run)["faults"] > before)
    manage(run, "static", "60%")
    wait_steps(run, 3)
    paging(run)
    run.check_losses()


def test_forked_workers_read_tensors_of_their_parent(start: Start) -> None:
    """The workers run while most of the parent's pages are in the file."""
    run = start("cnn", "--workers", "2")
    manage(run, "static", "40%")
    wait_steps(run, 20)
    run.check_losses()


def test_accesses_that_no_plan_expects(start: Start) -> None:
    run = start("perceptron", "--vary")
    done = run.daemon.ctl("attach", str(run.pid), "--fast", "40%", "--policy", "static")
    assert done.returncode == 0, done.stderr
    wait(lambda: run.status()["paging"] is not None)
    wait_steps(run, 20)
    paging(run)
    run.check_losses()


def train(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start 8 steps of the large model."""
    return subprocess.Popen(
        [*command, sys.executable, str(TRAIN), "large", "8"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Wait until a training ends; return its exit status and the losses that were still unread."""
    losses, _ = process.communicate()
    return process.returncode, losses.split()


def test_a_model_larger_than_memory_trains_from_its_first_step(tmp_path: Path) -> None:
    """The memory limit leaves room for about half of the tensors. It applies to profiled steps,
    too."""
    try:
        limited_command(1 << 40).close()
    except SentinelError as error:
        pytest.skip(str(error))
    # The memory limit leaves no room for mapped files. The unlimited training reads them into the
    # page cache first, so the kernel charges them to the cgroup of the unlimited training.
    unlimited = train([], {})
    assert unlimited.stdout is not None
    first = unlimited.stdout.readline().strip()
    limit_bytes = anonymous_peak_bytes(unlimited.pid) - LARGE_BYTES // 2
    status, later = ended(unlimited)
    assert status == 0
    plain = [first, *later]
    daemon = Daemon(tmp_path, *tiers(tmp_path))
    run = [*SENTINELCTL, "--socket", str(daemon.control), "run", "--limit", str(limit_bytes)]
    environment = {"SENTINELD_SHIM_SOCKET": str(tmp_path / "shim.sock"), "PYTHONPATH": str(ROOT)}
    try:
        paged = [*run, "--fast", str(LARGE_BYTES * 2 // 5), "--policy", "static", "--"]
        assert ended(train(paged, environment)) == (0, plain)
        if not Path("/proc/swaps").read_text().splitlines()[1:]:
            unpaged = environment | {"SENTINELD_SHIM_SOCKET": str(tmp_path / "none.sock")}
            assert ended(train([*run, "--"], unpaged)) == (128 + signal.SIGKILL, [])
    finally:
        daemon.stop()


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "config.d"
    folder.mkdir()
    (folder / "limit.toml").write_text("[tiers]\npaged_bytes = 1048576\n")
    run = ManagedRun(tmp_path, "perceptron", alone=REST, tiers=tiers(tmp_path), config=DISK_RATES)
    try:
        done = run.daemon.ctl("attach", str(run.pid), "--fast", "40%", "--policy", "static")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = wait(lambda: (now := run.status())["state"] == "registered" and now)
        assert "tiers.paged_bytes" in found["reason"]
        assert found["paging"] is None
        run.check_losses()
    finally:
        run.close()


def test_a_directory_that_cannot_hold_pages_is_reported(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "--tiers", "paged:/proc")
    try:
        status = json.loads(daemon.ctl("status", "--json").stdout)
        assert status["tiers"] == []
        (problem,) = [one for one in status["problems"] if "/proc" in one]
        assert "name a folder on a local disk" in problem
    finally:
        daemon.stop()
