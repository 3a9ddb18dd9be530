# SPDX-License-Identifier: Apache-2.0
"""Paged trainings on slow, full and failing disks, and with files that other programs change."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sentineld.shim.client import FAST_VARIABLE
from tests.integration.paged_run import (
    DISK_RATES,
    disk_bytes,
    file_of,
    paged_from_start,
    tiers,
    wait_paging,
)
from tests.integration.shim.daemon_side import EAGER, ROOT, TRAIN
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import ManagedRun, wait
from tests.unit.shim.paged import PAGE, pager_problem

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

FAST = "6MiB"
"""About 40 % of the bytes of the perceptron's tensors."""
PAGED_BYTES = 32 << 20
DISK_BYTES = 128 << 20
KILLS = (2, pytest.param(50, marks=pytest.mark.long))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    started = Daemon(folder, *tiers(folder), config=DISK_RATES)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that is built from disk.c."""
    path = tmp_path_factory.mktemp("disk") / "disk.so"
    compiler = os.environ.get("CC", "cc")
    source = Path(__file__).parent / "disk.c"
    flags = "-std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -shared".split()
    subprocess.run([compiler, *flags, "-o", str(path), str(source), "-ldl"], check=True)
    return str(path)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a small file system that is created anew for each test."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    image.touch()
    os.truncate(image, DISK_BYTES)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", image], check=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def start(folder: Path, daemon: Daemon, *wrapper: str) -> ManagedRun:
    return paged_from_start(
        folder, "perceptron", daemon=daemon, script=TRAIN, fast=FAST, wrapper=wrapper
    )


def check_end(run: ManagedRun, *messages: str) -> None:
    """Check that the training has ended with one of the messages, and has printed no wrong loss."""
    status, losses, stderr = run.training.ended()
    assert status == -6, stderr
    assert any(message in stderr for message in messages), stderr
    assert stderr.rstrip().endswith("the training cannot go on")
    assert losses == run.training.plain_losses(len(losses))


def test_changed_data_ends_the_training(daemon: Daemon, tmp_path: Path) -> None:
    """Another program changes one bit of each page of the file."""
    run = start(tmp_path, daemon)
    try:
        wait_paging(run, PAGED_BYTES)
        # Stop the training, so that the pager cannot write a page to another offset before the
        # loop changes the page's copy at the old offset.
        os.kill(run.pid, signal.SIGSTOP)
        with file_of(run).open("r+b", buffering=0) as file:
            for at in range(0, os.fstat(file.fileno()).st_size, PAGE):
                (byte,) = os.pread(file.fileno(), 1, at + 99)
                os.pwrite(file.fileno(), bytes([byte ^ 4]), at + 99)
        os.kill(run.pid, signal.SIGCONT)
        check_end(run, "a page read back from the file is corrupt")
    finally:
        run.close()


def test_a_file_that_becomes_shorter_ends_the_training(daemon: Daemon, tmp_path: Path) -> None:
    run = start(tmp_path, daemon)
    try:
        wait_paging(run, PAGED_BYTES)
        os.truncate(file_of(run), 0)
        # After the truncation, the pager can write a page at a higher offset. The file then grows
        # again, and the lost pages below this offset read as zeros. The pager reports such a page
        # as corrupt.
        check_end(run, "cannot read pages back from the file", "a page read back from the file is")
    finally:
        run.close()


def test_a_failed_read_ends_the_training(daemon: Daemon, tmp_path: Path, preload: str) -> None:
    run = start(tmp_path, daemon, f"LD_PRELOAD={preload}", "DISK_READS=100")
    try:
        check_end(run, "cannot read pages back from the file: Input/output error")
    finally:
        run.close()


def test_after_a_failed_write_pages_stay_in_memory(
    daemon: Daemon, tmp_path: Path, preload: str
) -> None:
    run = start(tmp_path, daemon, f"LD_PRELOAD={preload}", "DISK_WRITES=40")
    try:
        run.training.wait_losses(5)
        written = disk_bytes(run)[1]
        run.training.wait_losses(len(run.training.times_s) + 5)
        assert disk_bytes(run)[1] == written > 0
        run.check_losses()
    finally:
        run.close()


def test_a_slow_disk_changes_no_loss(daemon: Daemon, tmp_path: Path, preload: str) -> None:
    run = start(tmp_path, daemon, f"LD_PRELOAD={preload}", "DISK_SLOW_US=10000")
    try:
        run.training.wait_losses(6)
        assert min(disk_bytes(run)) > 0
        run.check_losses()
    finally:
        run.close()


def large_losses(socket_path: Path, steps: int) -> list[str]:
    """Losses of the large model under the shim, with a budget of 48 MiB.

    The inner layers take 288 MiB (see train.py). The 240 MiB beyond the budget do not fit in the
    paging files of the tests that call this function. The training is not paged if no daemon
    listens on the socket.
    """
    train = [str(EAGER), str(TRAIN), "large", str(steps)]
    command = [sys.executable, "-m", "sentineld.shim", *train]
    environment = {"SENTINELD_SHIM_SOCKET": str(socket_path), FAST_VARIABLE: "48MiB"}
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def room_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bfree * found.f_frsize


def test_a_full_disk_changes_no_loss(small_disk: Path, tmp_path: Path) -> None:
    """The file cannot grow to the size that the training needs."""
    daemon = Daemon(tmp_path, *tiers(small_disk))
    room = room_bytes(small_disk)
    try:
        losses = large_losses(tmp_path / "shim.sock", 3)
        assert losses == large_losses(tmp_path / "none.sock", 3)
        wait(lambda: room_bytes(small_disk) == room)
    finally:
        daemon.stop()


def test_a_limited_file_changes_no_loss(tmp_path: Path) -> None:
    folder = tmp_path / "config.d"
    folder.mkdir()
    (folder / "limit.toml").write_text(f"[tiers]\npaged_bytes = {96 << 20}\n")
    daemon = Daemon(tmp_path, *tiers(tmp_path), config=DISK_RATES)
    try:
        losses = large_losses(tmp_path / "shim.sock", 3)
        assert losses == large_losses(tmp_path / "none.sock", 3)
    finally:
        daemon.stop()


@pytest.mark.parametrize("kills", KILLS)
def test_a_killed_training_leaves_nothing_behind(
    small_disk: Path, tmp_path: Path, kills: int
) -> None:
    """Trainings are killed at random times. Their files are deleted; the daemon keeps running."""
    print(f"{kills} trainings are killed")
    with Daemon(tmp_path, *tiers(small_disk)) as daemon:
        room, chance = room_bytes(small_disk), random.Random(1)
        for number in range(kills):
            folder = tmp_path / str(number)
            folder.mkdir()
            with closing(start(folder, daemon)):
                time.sleep(chance.uniform(0, 1))
            wait(lambda: room_bytes(small_disk) == room)
        with closing(start(tmp_path, daemon)) as run:
            run.training.wait_losses(6)
            run.check_losses()
