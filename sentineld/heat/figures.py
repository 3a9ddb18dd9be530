# SPDX-License-Identifier: Apache-2.0
"""The figures that a session of policy `temperature` reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figures:
    """A session's figures at one moment. Counters never decrease while the session lasts."""

    budget_bytes: int = 0
    resident_bytes: int = 0  # anonymous memory
    swapped_bytes: int = 0
    peak_bytes: int = 0  # largest sum of resident and swapped bytes since the attach
    paged_out_bytes: int = 0  # counter: paged out at the session's request
    returned_bytes: int = 0  # counter: swapped pages that the process has accessed again
    prefetched_bytes: int = 0  # counter
    scans: int = 0  # counter
    interval_s: float = 0.0  # between the beginnings of two scans
    scan_cpu_s: float = 0.0
    """Counter: CPU time of scans, of listing processes, of reading sizes, and of the work for the
    shared budget (HeatSession._learn() and _follow_share())."""
    move_cpu_s: float = 0.0  # counter: CPU time of page-outs and prefetches
    cpu_share: float = 0.0  # CPU use between the ends of the last two scans, as a share of a core
    observed_by: str = ""  # damon, or swap-ins if no accessed bits can be read
    skipped_bytes: Mapping[str, int] = field(default_factory=dict)  # see SessionMemory
    processes: tuple[int, ...] = ()  # the managed processes
    left_out: int = 0  # processes of the target that are not managed
    left_out_reason: str = ""  # why one of these is not managed
    working_set_bytes: int | None = None
    """The smallest budget with which no page in use waits for swap, as predicted from the
    temperatures; None: not known. Set only for sessions that share the shared budget."""
