# SPDX-License-Identifier: Apache-2.0
"""The pager in a process of its own: failing disks, forks, accesses by the kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.shim.paged import PATIENCE_S

ROOT = Path(__file__).parents[4]


def run_case(library_path: Path, case: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.unit.shim.paged", str(library_path), case, str(folder)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@pytest.mark.parametrize(
    "case",
    [
        *(
            "write_fails",
            "disk_full",
            "file_full",
            "fork_children",
            "fork_overlaps",
            "fork_repeatedly",
            "fork_closes_descriptors",
            "fork_drops",
            "fork_reads",
            "kernel_reads",
        ),
        "several_operands",
    ],
)
def test_in_a_process_of_its_own(library_path: Path, case: str, tmp_path: Path) -> None:
    done = run_case(library_path, case, tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("read_corrupt", "a page read back from the file is corrupt"),
        ("read_all_corrupt", "a page read back from the file is corrupt"),
        ("read_fails", "cannot read pages back from the file"),
        ("fork_read_fails", "a forked child cannot read its parent's pages from the file"),
    ],
)
def test_lost_pages_end_the_training(
    library_path: Path, case: str, message: str, tmp_path: Path
) -> None:
    """The training ends with one message, and never continues with wrong data."""
    done = run_case(library_path, case, tmp_path)
    assert done.returncode == -6
    assert message in done.stderr
    assert done.stderr.rstrip().endswith("the training cannot go on")
    assert done.stderr.count("sentineld: ") == 1
    assert done.stdout == ""
