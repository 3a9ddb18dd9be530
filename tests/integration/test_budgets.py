# SPDX-License-Identifier: Apache-2.0
"""The budgets of several processes on one fast tier."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.idle_process import WELCOMED
from tests.integration.test_daemon import Daemon
from tests.sentinelctl import refused

REPOSITORY = Path(__file__).parents[2]


@contextmanager
def idle_process(daemon: Daemon) -> Iterator[str]:
    """A registered process that never begins a step; yields its process ID."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.idle_process", str(daemon.folder / "shim.sock")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == WELCOMED
        yield str(process.pid)
    finally:
        process.kill()
        process.communicate()


def test_the_budgets_of_all_processes_fit_the_fast_tier(tmp_path: Path) -> None:
    # Each emulated tier has the capacity of the machine's memory.
    capacity_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most, rest = str(capacity_bytes * 6 // 10), str(capacity_bytes * 3 // 10)
    with (
        Daemon(tmp_path, "--tiers", "emulated:cxl") as daemon,
        idle_process(daemon) as first,
        idle_process(daemon) as second,
    ):
        assert daemon.ctl("attach", first, "--fast", most).returncode == 0
        line = refused(daemon.ctl("attach", second, "--fast", most), "budget-too-large")
        assert "that are left of the fast tier's" in line
        assert daemon.ctl("attach", second, "--fast", rest).returncode == 0
        assert daemon.ctl("detach", first).returncode == 0
        assert daemon.ctl("detach", second).returncode == 0
        assert daemon.ctl("attach", second, "--fast", most).returncode == 0
