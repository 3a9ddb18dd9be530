# SPDX-License-Identifier: Apache-2.0
"""A swap area that exists during a test. Tests that use it have the mark `alone`, because the swap
would disturb other tests that run under a memory limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.required import unless_required

ZRAM = Path("/sys/class/zram-control")


@contextmanager
def swap_area(kind: str, folder: Path, size_bytes: int) -> Iterator[None]:
    """Enable a swap area; kind: "file" (in the folder) or "zram". Skips the test if that is not
    possible here; see tests/required.py."""
    with ExitStack() as stack:
        if kind == "zram":
            area = stack.enter_context(_zram(size_bytes))
        else:
            area = folder / "swap"
            area.touch(0o600)
            with area.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
        subprocess.run(["mkswap", area], check=True, capture_output=True)
        enabled = subprocess.run(["swapon", area], capture_output=True, text=True)
        if enabled.returncode:
            problem = f"swap cannot be enabled here: {enabled.stderr.strip()}"
            pytest.skip(unless_required("swap", problem))
        stack.callback(subprocess.run, ["swapoff", area], check=True)
        yield


@contextmanager
def _zram(size_bytes: int) -> Iterator[Path]:
    """A new zram device."""
    if not ZRAM.is_dir():
        pytest.skip(unless_required("swap", "this kernel has no zram"))
    try:
        number = (ZRAM / "hot_add").read_text().strip()
    except OSError as error:
        problem = f"no zram device can be added here: {error.strerror}"
        pytest.skip(unless_required("swap", problem))
    try:
        Path(f"/sys/block/zram{number}/disksize").write_text(str(size_bytes))
        yield Path(f"/dev/zram{number}")
    finally:
        (ZRAM / "hot_remove").write_text(number)
