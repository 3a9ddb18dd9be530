# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of the daemon itself."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypedDict

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(TypedDict):
    """CPU time of this process since its start, and its memory now."""

    time_ns: int
    """CLOCK_MONOTONIC at the time of the reading, so that a reader can compute rates."""
    cpu_ns: int
    """CPU time of all threads, user and system. Planning processes are not included."""
    memory_bytes: int
    """Resident memory."""


def usage() -> Usage:
    """The current figures of this process."""
    resident_pages = int(_STATM.read_text().split()[1])
    return Usage(
        time_ns=time.monotonic_ns(),
        cpu_ns=time.process_time_ns(),
        memory_bytes=resident_pages * _PAGE_BYTES,
    )
