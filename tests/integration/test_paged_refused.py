# SPDX-License-Identifier: Apache-2.0
"""The errors that a user sees if the machine lacks a feature that the pager requires."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration.paged_run import DISK_RATES, paged_from_start, tiers
from tests.integration.shim.daemon_side import ROOT, TRAIN
from tests.integration.shim.place import Within
from tests.integration.test_daemon import Daemon
from tests.integration.test_emulated import REST, ManagedRun, wait
from tests.sentinelctl import refused
from tests.unit.shim.paged import DEVICE, pager_problem

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")

NO_MOVE = (sys.executable, str(ROOT / "tests/integration/without_move.py"))
NO_ACCESS = """
touch "$0" && chmod 0 "$0" && mount --bind "$0" /dev/userfaultfd || exit 9
exec setpriv --inh-caps=-dac_override --bounding-set=-dac_override -- "$@"
"""
"""Shell script that runs a command without access to /dev/userfaultfd. $0: a path at which the
script creates a file without permissions. It mounts this file over the device."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    started = Daemon(folder, *tiers(folder), config=DISK_RATES)
    yield started
    started.stop()


def wrapper_of(lack: str, folder: Path) -> tuple[str, ...]:
    """Prefix that makes a command run as on a machine without the feature `lack`; see LACKS."""
    if lack == "move":
        return NO_MOVE
    if os.geteuid():
        pytest.skip("only root can mount")
    return ("unshare", "--mount", "sh", "-c", NO_ACCESS, str(folder / "device"))


LACKS = {
    "move": ("no-second-tier", "this kernel's userfaultfd cannot move pages (use Linux 6.8"),
    "access": ("not-permitted", f"{DEVICE} cannot be opened: Permission denied (write this udev"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_the_daemon_reports_what_is_missing(tmp_path: Path, lack: str) -> None:
    code, message = LACKS[lack]
    wrapper = wrapper_of(lack, tmp_path)
    with (
        Daemon(tmp_path, *tiers(tmp_path), wrapper=wrapper) as daemon,
        closing(ManagedRun(tmp_path, "cnn", alone=REST, daemon=daemon)) as run,
    ):
        status = json.loads(run.daemon.ctl("status", "--json").stdout)
        assert status["tiers"] == []
        assert any(message in problem for problem in status["problems"]), status["problems"]
        attach = run.daemon.ctl("attach", str(run.pid), "--fast", "40%")
        assert message in refused(attach, code)
        run.training.wait_losses(6)
        run.check_losses()


@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        ("move", "the kernel's userfaultfd cannot move pages (use Linux 6.8 or later)"),
        ("access", "/dev/userfaultfd cannot be opened"),
    ],
)
def test_a_training_without_a_pager_is_reported(
    daemon: Daemon, tmp_path: Path, lack: str, reason: str
) -> None:
    """Only the training lacks the feature; the daemon has it."""
    place = Within(*wrapper_of(lack, tmp_path))
    run = ManagedRun(tmp_path, "cnn", alone=REST, daemon=daemon, place=place)
    try:
        done = daemon.ctl("attach", str(run.pid), "--fast", "40%", "--policy", "static")
        assert done.returncode == 0, done.stderr
        wait(lambda: reason in run.status()["reason"])
        assert run.status()["paging"] is None
        run.training.wait_losses(len(run.training.times_s) + 3)
        run.check_losses()
    finally:
        run.close()


def test_a_folder_in_memory(tmp_path: Path) -> None:
    """Before Linux 6.6, tmpfs lacks O_DIRECT, and the daemon refuses the folder. From 6.6 on,
    paging to the folder works, although it frees no memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        if (
            "tmpfs"
            not in subprocess.run(
                ["stat", "-f", "-c", "%T", name], capture_output=True, text=True
            ).stdout
        ):
            pytest.skip("/dev/shm is not a tmpfs")
        with Daemon(tmp_path, *tiers(folder)) as daemon:
            status = json.loads(daemon.ctl("status", "--json").stdout)
            if not status["tiers"]:
                assert any("it lacks O_TMPFILE or O_DIRECT" in one for one in status["problems"])
                return
            with closing(
                paged_from_start(tmp_path, "perceptron", daemon=daemon, script=TRAIN, fast="6MiB")
            ) as run:
                run.training.wait_losses(6)
                run.check_losses()
