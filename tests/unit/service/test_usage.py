# SPDX-License-Identifier: Apache-2.0
"""The daemon's own CPU time and memory, read from this process."""

from __future__ import annotations

import os
import time

from sentineld.service.usage import usage
from tests.process_figures import memory_bytes


def test_cpu_time_and_clock_advance() -> None:
    before = usage()
    while time.process_time_ns() < before["cpu_ns"] + 1_000_000:
        pass
    after = usage()
    assert after["cpu_ns"] - before["cpu_ns"] >= 1_000_000
    assert after["time_ns"] > before["time_ns"]


def test_memory_is_the_resident_size() -> None:
    # The size can change between the readings.
    assert abs(usage()["memory_bytes"] / memory_bytes(os.getpid(), "VmRSS") - 1) < 0.1
