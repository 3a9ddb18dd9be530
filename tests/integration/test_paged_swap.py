# SPDX-License-Identifier: Apache-2.0
"""The kernel swaps pages of a training while the pager pages its tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.host.memory_limit import limited_command
from tests.integration.paged_run import tiers
from tests.integration.shim.daemon_side import ROOT, TRAIN
from tests.integration.test_daemon import Daemon
from tests.process_figures import anonymous_peak_bytes
from tests.unit.shim.paged import pager_problem

pytest.importorskip("torch")
# While swap is enabled, other tests of trainings under a limit would measure other figures.
pytestmark = [
    pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or ""),
    pytest.mark.alone,
]

SWAP_BYTES = 1 << 30
STEPS = 6
FAST_BYTES = 120 << 20
SHORT_BYTES = 64 << 20
"""Memory that the training lacks although its tensors are paged; the kernel swaps it."""
ZRAM = Path("/sys/class/zram-control")


def swapped_out() -> int:
    """Pages that the kernel has written to swap since the boot."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("pswpout "))


@pytest.fixture(params=["file", "zram"])
def swap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A swap area of this test."""
    number = ""
    if request.param == "zram":
        if not ZRAM.is_dir():
            pytest.skip("this kernel has no zram")
        number = (ZRAM / "hot_add").read_text().strip()
        Path(f"/sys/block/zram{number}/disksize").write_text(str(SWAP_BYTES))
        area = Path(f"/dev/zram{number}")
    else:
        area = tmp_path / "swap"
        area.touch(0o600)
        with area.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, SWAP_BYTES)
    try:
        subprocess.run(["mkswap", area], check=True, capture_output=True)
        enabled = subprocess.run(["swapon", area], capture_output=True, text=True)
        if enabled.returncode:
            pytest.skip(f"swap cannot be enabled here: {enabled.stderr.strip()}")
        yield
        subprocess.run(["swapoff", area], check=True)
    finally:
        if number:
            (ZRAM / "hot_remove").write_text(number)


def train(prefix: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, str(TRAIN), "large", str(STEPS)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_kernel_swaps_beside_the_pager(swap: None, tmp_path: Path) -> None:
    try:
        limited_command(1 << 40).close()
    except SentinelError as error:
        pytest.skip(str(error))
    plain = train([], {})
    assert plain.stdout is not None
    first = plain.stdout.readline()
    unpaged_bytes = anonymous_peak_bytes(plain.pid) - (288 << 20)
    losses = first + plain.communicate()[0]
    limit_bytes = unpaged_bytes + FAST_BYTES - SHORT_BYTES
    daemon = Daemon(tmp_path, *tiers(tmp_path))
    ctl = [sys.executable, "-c", "from sentineld.cli import main; main()"]
    run = [*ctl, "--socket", str(daemon.control), "run", "--limit", str(limit_bytes)]
    environment = {"SENTINELD_SHIM_SOCKET": str(tmp_path / "shim.sock"), "PYTHONPATH": str(ROOT)}
    before = swapped_out()
    try:
        paged = train([*run, "--fast", str(FAST_BYTES), "--policy", "static", "--"], environment)
        found, _ = paged.communicate()
        assert paged.returncode == 0
        assert found == losses
        assert swapped_out() - before > SHORT_BYTES // 2 // 4096
    finally:
        daemon.stop()
