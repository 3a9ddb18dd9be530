# SPDX-License-Identifier: Apache-2.0
"""What the eBPF programs hand over: the layouts of bpf/*.h and bpf/*.c.

The loader compares the sizes with the kernel's maps, so that a change on one
side alone ends in an error and not in wrong figures.
"""

from __future__ import annotations

from typing import NamedTuple, TypedDict

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
faulting address in bytes, the process, an index of FAULT_KINDS; 24 bytes. Of what
the kernel finds in a fault, the address is the page's."""

FAULT_KINDS = (
    "missing_read",
    "missing_write",
    "protection_read",
    "protection_write",
    "instruction",
    "major",
    "hint",
    "in_motion",
)
"""Names of enum fault_kind. The last three say what the kernel found in a fault, which counts as
one of the others, too: the page was read from swap, was unmapped by NUMA balancing to see who uses
it, or was just being moved. To the processor, armed pages and those of a hint are missing."""

FOUND_KINDS = tuple(map(FAULT_KINDS.index, ("major", "hint", "in_motion")))

WATCH_DTYPE = np.dtype(
    [
        ("epoch", "<u4"),
        ("reserved", "<u4"),
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

DISTURBANCE_KEY_DTYPE = np.dtype(
    [("owner", "<u4"), ("deed", "u1"), ("from", "u1"), ("to", "u1"), ("own", "?"), ("comm", "S16")]
)
"""struct disturbance_key: whose pages, what was done to them and by whom; nodes, 255 for none."""

DISTURBANCE_DTYPE = np.dtype(
    [
        ("pages", "<u8"),
        ("kept", "<u8"),
        ("last_ns", "<u8"),
        ("mover", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""struct disturbance."""

DEEDS = {64: "reclaim", 65: "collapse", 66: "unknown"}
"""Names of the deeds that are no reason of a migration; those are the kernel's own."""
NO_NODE = 255

DROP_DTYPE = np.dtype("<u8")

DROPS = ("fault_records", "migration_calls", "disturbed_pages")
"""Names of enum drop."""

MAP_VALUE_BYTES = {
    "watched": WATCH_DTYPE.itemsize,
    "migrations": MIGRATION_DTYPE.itemsize,
    "migrations_by": MIGRATION_DTYPE.itemsize,
    "drops": DROP_DTYPE.itemsize,
    "disturbances": DISTURBANCE_DTYPE.itemsize,
    "recorded": 4,
    "recorded_number": 4,
    "faults": 0,
}
"""The maps that the loader hands over, and the bytes of a value in each."""

PROGRAMS = {
    "page_fault_user": "on_page_fault",
    "page_fault_kernel": "on_page_fault",
    "page_access": "on_page_access",
    # a move's end first: one that is seen to end only does no harm
    "mm_migrate_pages": "on_migrate_pages",
    "mm_migrate_pages_start": "on_migrate_pages_start",
    "mm_collapse_huge_page": "on_collapse",
}
"""The program for each raw tracepoint, in the order in which they are attached."""

WHILE_WATCHED = ("page_access",)
"""Attached only while some process is watched: it keeps the kernel module from being unloaded. The
page faults' stay: to switch them is to patch the kernel's page-fault entry while all of the machine
runs through it, and that is done once at the daemon's start rather than with each session."""


class Traced(NamedTuple):
    """A kernel function that a program is attached to. returns: at its end, not its begin.
    parameters: how many it must have. tells: what is not known without it."""

    function: str
    parameters: int
    program: str
    returns: bool
    tells: str


TRACED = (
    Traced("mpol_misplaced", 3, "on_hint_fault", False, "NUMA hint faults"),
    Traced("do_swap_page", 1, "on_swap_page", True, "major faults"),
    Traced("migration_entry_wait", 3, "on_page_in_motion", False, "waits for pages in motion"),
    Traced("remove_migration_pte", 4, "on_page_back", False, "who else moves pages"),
    Traced("try_to_unmap_one", 4, "on_page_gone", True, "who reclaims pages"),
)
"""The functions, which are no stable interface: each is looked for in the kernel's BTF."""


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


class Disturbance(TypedDict):
    """What somebody other than the daemon did with pages of a watched process.

    by, pid: the mover's name and its latest process. own: that process is the owner. deed: the
    kernel's name of a migration's reason, or one of DEEDS. Nodes: None where pages went nowhere or
    it is not known. pages: done; kept: stayed, once for each try. last_ns: on CLOCK_MONOTONIC.
    """

    by: str
    pid: int
    own: bool
    deed: str
    from_node: int | None
    to_node: int | None
    pages: int
    kept: int
    last_ns: int


class EbpfCounters(TypedDict):
    """Counters since the programs were attached; per process since it is watched."""

    faults: dict[int, dict[str, int]]
    accesses: dict[int, AccessCounts]
    migrations: dict[str, MigrationCounts]
    movers: list[MoverCounts]
    disturbances: dict[int, list[Disturbance]]
    dropped: dict[str, int]
