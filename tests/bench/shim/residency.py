# SPDX-License-Identifier: Apache-2.0
"""The resident size of a process's planned arena, from /proc/PID/pagemap."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from sentineld.model.protocol import CONTROL_DTYPE

CONTROL = "/memfd:sentinel-control"
PAGE_BYTES = 4096
PRESENT = np.uint64(63)
"""Bit number of "page present" in an entry of /proc/PID/pagemap."""


def resident_arena_bytes(pid: int) -> int:
    """Return the resident bytes of the live layout's arena, or 0 if no layout is live.

    Raises RuntimeError if the process has exited or has no control segment (memory that the shim
    shares with the daemon; it contains the arena's address).
    """
    try:
        base, size = _arena(pid)
        with open(f"/proc/{pid}/pagemap", "rb") as file:
            file.seek(base // PAGE_BYTES * 8)
            entries = np.frombuffer(file.read(size // PAGE_BYTES * 8), np.uint64)
    except OSError as error:
        raise RuntimeError(f"cannot read the arena of process {pid}: {error}") from error
    return int((entries >> PRESENT).sum()) * PAGE_BYTES


def _arena(pid: int) -> tuple[int, int]:
    """Return the arena's base and size, from the first words of the control segment."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith(CONTROL):
            with link.open("rb") as file:
                (words,) = np.frombuffer(file.read(CONTROL_DTYPE.itemsize), CONTROL_DTYPE)
            return int(words["arena_base"]), int(words["arena_bytes"])
    raise FileNotFoundError("no control segment")
