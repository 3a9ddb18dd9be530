# SPDX-License-Identifier: Apache-2.0
"""What of a process's planned arena is resident, by the kernel's own word."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sentineld.model.protocol import CONTROL_DTYPE

CONTROL = "/memfd:sentinel-control"
PAGE_BYTES = 4096
PRESENT = np.uint64(63)
"""The bit of an entry of /proc/PID/pagemap."""


def resident_arena_bytes(pid: int) -> int:
    """Of the live layout's arena; 0 without one. Raises RuntimeError if the process is gone."""
    try:
        base, size = _arena(pid)
        with open(f"/proc/{pid}/pagemap", "rb") as file:
            file.seek(base // PAGE_BYTES * 8)
            entries = np.frombuffer(file.read(size // PAGE_BYTES * 8), np.uint64)
    except OSError as error:
        raise RuntimeError(f"process {pid} tells nothing of its arena: {error}") from error
    return int((entries >> PRESENT).sum()) * PAGE_BYTES


def _arena(pid: int) -> tuple[int, int]:
    """Base and size, from the shim's own words, which are only looked at."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith(CONTROL):
            with link.open("rb") as file:
                (words,) = np.frombuffer(file.read(CONTROL_DTYPE.itemsize), CONTROL_DTYPE)
            return int(words["arena_base"]), int(words["arena_bytes"])
    raise FileNotFoundError("it has no control segment")
