# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon can use DAMON, according to DAMON's sysfs files.

The tests write these files as they were recorded in a virtual machine.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sentineld.base.errors import SentinelError
from sentineld.observe.kdamond import ADDRESSES, FRAMES, Kdamond, Sampling, usable
from tests.unit.files import write


@pytest.fixture
def kdamonds(tmp_path: Path) -> Path:
    """DAMON's sysfs files while nothing uses DAMON."""
    write(tmp_path, "nr_kdamonds", "0\n")
    return tmp_path


def test_a_kernel_without_damon(tmp_path: Path) -> None:
    problem = usable(tmp_path / "none")
    assert problem is not None
    assert "CONFIG_DAMON_SYSFS" in problem.hint


def test_unused_damon_is_usable(kdamonds: Path) -> None:
    assert usable(kdamonds) is None


def test_damon_without_operations_for_processes(kdamonds: Path) -> None:
    """The kernel has CONFIG_DAMON_SYSFS, but not CONFIG_DAMON_VADDR."""
    write(kdamonds, "0/contexts/nr_contexts", "0\n")
    write(kdamonds, "0/contexts/0/avail_operations", "paddr\n")
    problem = usable(kdamonds)
    assert problem is not None
    assert "CONFIG_DAMON_VADDR" in problem.hint
    assert usable(kdamonds, operations=FRAMES) is None
    assert (kdamonds / "nr_kdamonds").read_text() == "0\n"
    with pytest.raises(SentinelError, match="does not support"):
        Kdamond(ADDRESSES, 418, kdamonds)
    # kdamond.py caches this error. A traceback in the cached object would keep the session's
    # variables alive.
    assert problem.__traceback__ is None


def test_damon_is_not_usable_while_the_kernel_uses_it(kdamonds: Path, tmp_path: Path) -> None:
    modules = tmp_path / "module"
    write(modules, "damon_stat/parameters/enabled", "Y\n")
    problem = usable(kdamonds, modules=modules)
    assert problem is not None
    assert "DAMON_STAT" in problem.message
    assert str(modules / "damon_stat/parameters/enabled") in problem.hint
    write(modules, "damon_stat/parameters/enabled", "N\n")
    assert usable(kdamonds, modules=modules) is None


def test_a_stopped_kdamond_is_usable(kdamonds: Path) -> None:
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "off\n")
    assert usable(kdamonds) is None


def test_another_program_s_kdamond_is_left_unchanged(kdamonds: Path) -> None:
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "on\n")
    write(kdamonds, "0/contexts/0/targets/0/pid_target", "417\n")
    problem = usable(kdamonds)
    assert problem is not None
    assert "417" in problem.message
    with pytest.raises(SentinelError, match="417"):
        Kdamond(ADDRESSES, 418, kdamonds)
    assert (kdamonds / "nr_kdamonds").read_text() == "1\n"
    assert (kdamonds / "0/state").read_text() == "on\n"


def test_a_kdamond_that_a_dead_daemon_left_on_the_process_is_taken_over(kdamonds: Path) -> None:
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "on\n")
    write(kdamonds, "0/contexts/0/targets/0/pid_target", "417\n")
    assert usable(kdamonds, pid=417) is None


@pytest.mark.parametrize("operations", [ADDRESSES, FRAMES])
def test_a_kdamond_on_frames_is_taken_over_once_its_daemon_has_died(
    kdamonds: Path, operations: str
) -> None:
    daemon = subprocess.Popen(["/bin/sleep", "1000"])
    write(kdamonds, "nr_kdamonds", "1\n")
    write(kdamonds, "0/state", "on\n")
    write(kdamonds, "0/contexts/0/operations", "paddr\n")
    write(kdamonds, "0/contexts/0/targets/0/pid_target", f"{daemon.pid}\n")
    assert usable(kdamonds, os.getpid(), operations=operations) is not None
    daemon.kill()
    daemon.wait()
    assert usable(kdamonds, os.getpid(), operations=operations) is None
    # A kdamond that watches a process ends by itself when this process exits, so it is not taken
    # over.
    write(kdamonds, "0/contexts/0/operations", "fvaddr\n")
    assert usable(kdamonds, os.getpid(), operations=operations) is not None
    # A program other than the daemon watches page frames: it leaves pid_target at 0.
    write(kdamonds, "0/contexts/0/operations", "paddr\n")
    write(kdamonds, "0/contexts/0/targets/0/pid_target", "0\n")
    assert usable(kdamonds, os.getpid(), operations=operations) is not None


def test_looks_are_the_samples_of_an_aggregation() -> None:
    assert Sampling(5_000, 100_000, 10, 1000).looks == 20
