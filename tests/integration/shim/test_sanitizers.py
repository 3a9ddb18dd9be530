# SPDX-License-Identifier: Apache-2.0
"""The shim's C library with two training threads and two workers, under sanitizers.

ThreadSanitizer finds data races. AddressSanitizer finds the use of an arena or of emulated tiers
that another thread has replaced. tests/sanitize/threads.c describes the threads.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "sanitize"
STEPS = 2000
"""Steps of each training thread."""


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_share_the_library(sanitizer: str, tmp_path: Path) -> None:
    make = ["make", "-C", str(FOLDER), f"OUT={tmp_path}", f"SANITIZE={sanitizer}"]
    built = subprocess.run(
        [*make, f"{tmp_path}/threads"], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stderr
    for seed in (1, 2, 3):
        done = subprocess.run(
            [tmp_path / "threads", str(seed), str(STEPS)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:4000]
        counts = dict(part.split() for part in done.stdout.strip().split(", "))
        # Layouts arrived; some steps followed them, and other steps diverged.
        assert int(counts["layouts"]) > STEPS / 4
        assert 0 < int(counts["diverged"]) < int(counts["steps"])
