# SPDX-License-Identifier: Apache-2.0
"""What the eBPF programs hand over: the layouts of bpf/*.h and bpf/*.c.

The loader compares the sizes with the kernel's maps, so that a change on one
side alone ends in an error and not in wrong figures.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

FAULT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),
        ("address", "<u8"),
        ("pid", "<u4"),
        ("kind", "u1"),
        ("write", "?"),
        ("reserved", "<u2"),
    ]
)
"""One page fault in user mode (struct fault): time on CLOCK_MONOTONIC, the
faulting address in bytes, the process, an index of FAULT_KINDS; 24 bytes."""

FAULT_KINDS = (
    "missing_read",
    "missing_write",
    "protection_read",
    "protection_write",
    "instruction",
)
"""Names of enum fault_kind. An access to an armed page is a protection fault."""

WATCH_RECORD = 1

WATCH_DTYPE = np.dtype(
    [
        ("flags", "<u4"),
        ("epoch", "<u4"),
        ("faults", "<u8", (8,)),
        ("accesses", "<u8"),
        ("access_writes", "<u8"),
    ]
)
"""struct watch: the counters of one watched process."""

MIGRATION_DTYPE = np.dtype(
    [("calls", "<u8"), ("succeeded", "<u8"), ("failed", "<u8"), ("comm", "S16")]
)
"""struct migration: calls of the kernel's migrate_pages() and their pages."""

MIGRATION_KEY_DTYPE = np.dtype([("pid", "<u4"), ("mode", "<u2"), ("reason", "<u2")])
"""struct migration_key: who moved pages, how and why."""

DROP_DTYPE = np.dtype("<u8")

DROPS = ("fault_records", "migration_calls")
"""Names of enum drop."""

MAP_VALUE_BYTES = {
    "watched": WATCH_DTYPE.itemsize,
    "migrations": MIGRATION_DTYPE.itemsize,
    "migrations_by": MIGRATION_DTYPE.itemsize,
    "drops": DROP_DTYPE.itemsize,
    "faults": 0,
}
"""The maps that the loader hands over, and the bytes of a value in each."""

PROGRAMS = {
    "page_fault_user": "on_page_fault",
    "mm_migrate_pages": "on_migrate_pages",
    "page_access": "on_page_access",
}
"""The program for each raw tracepoint."""


class MigrationCounts(TypedDict):
    """Calls of the kernel's migrate_pages() and the pages that moved or did not."""

    calls: int
    succeeded: int
    failed: int


class MoverCounts(MigrationCounts):
    """The same for one process that moved pages, in one mode for one reason."""

    pid: int
    comm: str
    mode: str
    reason: str


class AccessCounts(TypedDict):
    """What sentinel:page_access fired for one process."""

    accesses: int
    writes: int
    epoch: int


class EbpfCounters(TypedDict):
    """Counters since the programs were attached; per process since it is watched."""

    faults: dict[int, dict[str, int]]
    accesses: dict[int, AccessCounts]
    migrations: dict[str, MigrationCounts]
    movers: list[MoverCounts]
    dropped: dict[str, int]
