# SPDX-License-Identifier: Apache-2.0
"""The kernel swaps out memory of a training whose tensors are on paged tiers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.observe.mappings import read_mappings
from tests.integration.paged_run import tiers
from tests.integration.shim.daemon_side import EAGER, ROOT, TRAIN
from tests.integration.test_daemon import Daemon
from tests.sentinelctl import SENTINELCTL
from tests.swap_area import swap_area
from tests.unit.shim.paged import pager_problem

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or ""),
    pytest.mark.alone,
]

SWAP_BYTES = 1 << 30
STEPS = 6
FAST_BYTES = 120 << 20
PAGE_OUT_INTERVAL_S = 1.0
PROCESS_MADVISE, MADV_PAGEOUT = 440, 21
libc = ctypes.CDLL(None, use_errno=True)


def swapped_out() -> int:
    """Pages that the kernel has written to swap since the boot."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("pswpout "))


@pytest.fixture(params=["file", "zram"])
def swap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Enable a new swap area during the test."""
    with swap_area(request.param, tmp_path, SWAP_BYTES):
        yield


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, *tiers(tmp_path))
    yield daemon
    daemon.stop()


def train(*prefix: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, str(EAGER), str(TRAIN), "large", str(STEPS)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def train_paged(daemon: Daemon) -> subprocess.Popen[str]:
    """Train with `sentinelctl run`."""
    run = ("--socket", str(daemon.control), "run", "--fast", str(FAST_BYTES), "--policy", "static")
    shim_socket = str(daemon.folder / "shim.sock")
    return train(*SENTINELCTL, *run, "--", SENTINELD_SHIM_SOCKET=shim_socket, PYTHONPATH=str(ROOT))


def page_out(pid: int) -> None:
    """Have the kernel swap out a process's anonymous memory, including the pager's frames."""
    try:
        mappings, pidfd = read_mappings(pid), os.pidfd_open(pid)
    except OSError:
        return  # it has exited
    for mapping in mappings:
        if mapping.name in ("anonymous", "[heap]"):
            part = (ctypes.c_uint64 * 2)(mapping.start, mapping.end - mapping.start)
            # The call fails if the process has meanwhile unmapped a part of the mapping.
            libc.syscall(PROCESS_MADVISE, pidfd, part, 1, MADV_PAGEOUT, 0)
    os.close(pidfd)


def test_the_kernel_swaps_pages_of_the_pager(swap: None, daemon: Daemon) -> None:
    losses = train().communicate()[0]
    before = swapped_out()
    paged = train_paged(daemon)
    while paged.poll() is None:
        for session in daemon.sessions() or ():
            page_out(session["pid"])
        time.sleep(PAGE_OUT_INTERVAL_S)
    assert paged.communicate()[0] == losses
    assert paged.returncode == 0
    assert swapped_out() - before > FAST_BYTES // 4096
