# SPDX-License-Identifier: Apache-2.0
"""Losses stay the same, bit for bit, on a machine that denies the shim memory or permissions."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.shim import daemon_side as side
from tests.integration.shim.daemon_side import Daemon, Training
from tests.integration.shim.place import Within
from tests.integration.shim.test_start import THREE_STEPS, plain, run
from tests.integration.shim.test_training import check_losses, start

pytest.importorskip("torch")

AS_ROOT = os.geteuid() == 0

FULL = """
mount -t tmpfs -o size=4k full /dev/shm && head -c 4096 /dev/zero >/dev/shm/all || exit 9
if echo more 2>/dev/null >/dev/shm/more; then exit 9; fi
exec "$0" "$@"
"""
"""Shell script that runs a command with a full /dev/shm."""


def test_a_full_dev_shm_changes_nothing(tmp_path: Path) -> None:
    mapped = () if AS_ROOT else ("--user", "--map-root-user")
    place = Within("unshare", "--mount", *mapped, "sh", "-c", FULL)
    daemon = Daemon(tmp_path / "shim.sock", place)
    training = start(daemon, tmp_path, "cnn")
    side.manage(daemon)
    daemon.send({"type": "profile_ops"})
    assert daemon.receive("accesses")["count"] > 100
    os.close(daemon.take_descriptor())
    daemon.wait_steps(4)
    assert daemon.word("diverged_steps") == 0
    check_losses(training)
    daemon.close()


def test_runs_unmanaged_if_the_control_segment_exceeds_the_file_size_limit() -> None:
    """The control segment, which the shim shares with the daemon, is a memfd, to which RLIMIT_FSIZE
    applies."""
    done = run(*THREE_STEPS, within=("prlimit", f"--fsize={1 << 20}"))
    assert done.stdout == plain()
    reason = "cannot reserve the shim's heap or shared memory: File too large"
    assert done.stderr == f"sentineld.shim: running unmanaged: {reason}\n"


def test_connects_once_the_socket_permits_it(tmp_path: Path) -> None:
    # Root may connect to any socket unless it drops CAP_DAC_OVERRIDE.
    rights = ("--inh-caps=-dac_override", "--bounding-set=-dac_override")
    place = Within(*(("setpriv", *rights) if AS_ROOT else ()))
    daemon = Daemon(tmp_path / "shim.sock", place)
    daemon.path.chmod(0)
    training = Training("cnn", socket_path=daemon.path, stop=tmp_path / "stop", place=place)
    training.wait_losses(5)
    assert not daemon.called()
    # The shim retries, and the training is managed once the socket's mode permits a connection.
    daemon.path.chmod(0o600)
    daemon.accept()
    side.manage(daemon)
    check_losses(training)
    assert training.shim_lines() == []
    daemon.close()


CLOSED_PIPE = """
import os, sys
reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 2)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Python script that runs a command with a stderr whose reader has gone."""

UNWRITABLE = {
    "closed pipe": (sys.executable, "-c", CLOSED_PIPE),
    "full disk": ("sh", "-c", 'exec "$0" "$@" 2>/dev/full'),
    "none": ("sh", "-c", 'exec "$0" "$@" 2>&-'),
}
"""For each kind of stderr that takes no line, a command that runs another command with it."""


@pytest.mark.parametrize("within", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_line_at_the_start_that_stderr_does_not_take_changes_nothing(
    within: Sequence[str],
) -> None:
    done = run(*THREE_STEPS, within=within, SENTINELD_SHIM_LIBRARY="/no/such/library.so")
    assert (done.returncode, done.stdout) == (0, plain())


def test_a_line_after_the_script_has_closed_stderr_changes_nothing() -> None:
    code = f"import runpy, sys; sys.stderr.close(); sys.argv = {list(THREE_STEPS)}"
    code += '; runpy.run_path(sys.argv[0], run_name="__main__")'
    done = run("-c", code, SENTINELD_SHIM_LIBRARY="/no/such/library.so")
    assert (done.returncode, done.stdout, done.stderr) == (0, plain(), "")


@pytest.mark.parametrize("within", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_line_between_steps_that_stderr_does_not_take_changes_nothing(
    tmp_path: Path, within: Sequence[str]
) -> None:
    daemon = Daemon(tmp_path / "shim.sock", Within(*within))
    training = start(daemon, tmp_path, "cnn")
    daemon.send({"type": "refused", "error": "text"})
    assert daemon.hung_up()
    training.wait_losses(10)
    check_losses(training)
    daemon.close()
