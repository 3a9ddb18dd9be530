# SPDX-License-Identifier: Apache-2.0
"""Accesses to paged tensors that no plan takes into account: by threads, kernel and children.

paged_train.py prints the losses and the checksums of the bytes that the accesses read; both must be
the same as without the pager, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.integration.paged_run import (
    DISK_RATES,
    paged_from_start,
    paging,
    tiers,
    wait_paging,
    wait_steps,
)
from tests.integration.paged_train import KINDS, Pinned
from tests.integration.shim.daemon_side import ROOT
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import ManagedRun
from tests.sentinelctl import SENTINELCTL
from tests.unit.shim.paged import PAGE, pager_problem

pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

TRAIN = ROOT / "tests/integration/paged_train.py"
RANKS = ROOT / "tests/integration/shim/ranks.py"
COMPAT = ROOT / "tests/integration/shim/compat.py"
STEPS = 8


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    started = Daemon(folder, *tiers(folder), config=DISK_RATES)
    yield started
    started.stop()


def require(kind: str) -> None:
    """Skip if the accesses are impossible on this machine."""
    if kind == "pinned":
        try:
            Pinned([torch.ones(PAGE)]).close()
        except OSError as error:
            pytest.skip(f"no io_uring: {error}")


@pytest.mark.parametrize("kind", KINDS)
def test_accesses_see_the_same_bytes(daemon: Daemon, tmp_path: Path, kind: str) -> None:
    """Less than half of the tensors' bytes fit in memory."""
    require(kind)
    run = paged_from_start(tmp_path, kind, daemon=daemon, script=TRAIN, fast="6MiB")
    try:
        wait_paging(run, 32 << 20)
        run.training.wait_losses(STEPS)
        run.check_losses()
    finally:
        run.close()


PLANNED = ("forks", *(pytest.param(kind, marks=pytest.mark.long) for kind in sorted(KINDS)))


@pytest.mark.parametrize("kind", PLANNED)
def test_accesses_beside_planned_moves(daemon: Daemon, tmp_path: Path, kind: str) -> None:
    require(kind)
    run = ManagedRun(tmp_path, kind, daemon=daemon, script=TRAIN)
    try:
        run.manage("auto", "40%")
        wait_steps(run, STEPS)
        # Pinned pages cannot be evicted, so a training with pinned pages may exceed its budget.
        counts = run.status()["paging"] if kind == "pinned" else paging(run)
        assert min(counts["bytes_written"], counts["bytes_read"]) > 0
        run.check_losses()
    finally:
        run.close()


@pytest.mark.parametrize("kind", ["compile-aot", pytest.param("compile", marks=pytest.mark.long)])
def test_compiled_models_keep_their_losses(daemon: Daemon, tmp_path: Path, kind: str) -> None:
    run = paged_from_start(tmp_path, kind, daemon=daemon, script=COMPAT, fast="6MiB")
    try:
        wait_paging(run, 16 << 20)
        run.training.wait_losses(STEPS)
        run.check_losses()
    finally:
        run.close()


def test_two_ranks_share_a_disk(daemon: Daemon) -> None:
    """Each rank has a session, a pager and a file of its own."""
    script = [sys.executable, str(RANKS), "2", str(COMPAT), "parallel", "12"]
    plain = subprocess.run(script, capture_output=True, text=True, check=True)
    control = ("--socket", str(daemon.control))
    run = [*SENTINELCTL, *control, "run", "--fast", "4MiB", "--policy", "fast-only"]
    environment = {"SENTINELD_SHIM_SOCKET": str(daemon.folder / "shim.sock")}
    process = subprocess.Popen(
        [*run, "--", *script],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pagers: set[int] = set()
    while process.poll() is None:
        pagers |= {one["pid"] for one in daemon.sessions() or () if has_pager(one["pid"])}
        time.sleep(0.05)
    losses, messages = process.communicate()
    assert process.returncode == 0, messages
    assert len(pagers) == 2
    assert sorted(losses.split()) == sorted(plain.stdout.split())


def has_pager(pid: int) -> bool:
    """Whether the process has the pager's thread that serves page faults."""
    with contextlib.suppress(OSError):
        names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
        return "sentineld-fault" in names
    return False
