# SPDX-License-Identifier: Apache-2.0
"""The CPUs of a benchmark: one for the managed training, another for daemons and attackers."""

from __future__ import annotations

import os

TRAINING_CPU, OTHER_CPU = 0, 1


def pin(pids: list[int], cpu: int) -> None:
    """Restrict all threads of the processes to a CPU."""
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def unpin() -> None:
    """Let the calling thread, and the processes that it forks from now on, use all CPUs."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
