# SPDX-License-Identifier: Apache-2.0
"""Runs the shim's C code with several threads under sanitizers.

ThreadSanitizer finds data races. AddressSanitizer finds a thread that uses an arena, or the state
of emulated tiers, after another thread has replaced it. tests/sanitize/threads.c and
tests/sanitize/pager.c describe the threads.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import PROFILE
from tests.unit.shim.paged import pager_problem

FOLDER = Path(__file__).parents[2] / "sanitize"
STEPS = 2000
"""Steps of each training thread."""
OPERATIONS = 300
"""Operations of each thread that uses the pager."""
SEEDS = {"ci": (1,), "long": (1, 2, 3)}[PROFILE]

each_sanitizer = pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])


def built(program: str, sanitizer: str, folder: Path) -> Path:
    """Build a program of tests/sanitize."""
    path = folder / program
    make = ["make", "-C", str(FOLDER), f"OUT={folder}", f"SANITIZE={sanitizer}", str(path)]
    done = subprocess.run(make, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr
    return path


def counts_of(*command: object) -> dict[str, str]:
    """Run a program of tests/sanitize; returns the counts that it prints."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=850, check=False
    )
    assert done.returncode == 0, done.stderr[:4000]
    return dict(part.split() for part in done.stdout.strip().split(", "))


@each_sanitizer
def test_threads_share_the_library(sanitizer: str, tmp_path: Path) -> None:
    program = built("threads", sanitizer, tmp_path)
    for seed in SEEDS:
        counts = counts_of(program, seed, STEPS)
        # The program must have sent many layouts, so that many of its steps ran under one. Some of
        # these steps must have followed their layout, and others must have diverged.
        assert int(counts["layouts"]) > STEPS / 4
        assert 0 < int(counts["diverged"]) < 0.4 * int(counts["steps"])


@pytest.mark.skipif(pager_problem() is not None, reason=pager_problem() or "")
@each_sanitizer
def test_threads_share_the_pager(sanitizer: str, tmp_path: Path) -> None:
    program = built("pager", sanitizer, tmp_path)
    for seed in SEEDS:
        counts = counts_of(program, seed, OPERATIONS, tmp_path)
        assert int(counts["frames"]) <= int(counts["budget"])
        assert int(counts["faults"]) > 0
        assert counts["overruns"] == counts["error"] == "0"
