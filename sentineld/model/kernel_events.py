# SPDX-License-Identifier: Apache-2.0
"""Records and counters of the eBPF programs: the structures of bpf/*.h and bpf/*.c.

BpfMap compares the sizes of the counters and their keys with the value and key sizes of the
kernel's maps, and raises an error if they differ. Without this check, counters could be wrong after
a structure was changed in C but not in Python, or the other way round.
"""

from __future__ import annotations

from typing import NamedTuple, TypedDict

import numpy as np

FAULT_DTYPE = np.dtype(
    [
        ("time_ns", "<u8"),  # CLOCK_MONOTONIC
        ("address", "<u8"),  # faulting address; for FOUND_KINDS, address of the page
        ("pid", "<u4"),
        ("kind", "u1"),  # index in FAULT_KINDS
        ("write", "?"),
        ("reserved", "<u2"),
    ]
)
"""struct fault: a page fault at a user address. If the kind is one of FOUND_KINDS, the record
instead gives a cause that the kernel found while it handled such a fault."""

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
"""Names of the values of enum fault_kind. The first five are known when a fault begins. The last
three are found while the kernel handles the fault, so a fault of these kinds has two records.
"major": the page was read from swap. "hint": NUMA balancing had unmapped the page to see which node
uses it. "in_motion": the page was being migrated. If a fault hits an armed page, or a page that
NUMA balancing unmapped, its first record has the kind "missing_read" or "missing_write", because
the page-table entry is not marked as present."""

FOUND_KINDS = tuple(map(FAULT_KINDS.index, ("major", "hint", "in_motion")))
"""Indices of the kinds that are found while the fault is handled."""

WATCH_DTYPE = np.dtype(
    [
        ("epoch", "<u4"),  # epoch of the latest access
        ("reserved", "<u4"),
        ("faults", "<u8", (8,)),  # one counter for each of FAULT_KINDS
        ("accesses", "<u8"),  # events of the tracepoint sentinel:page_access
        ("access_writes", "<u8"),
    ]
)
"""struct watch: the counters of one watched process."""

MIGRATION_DTYPE = np.dtype(
    [("calls", "<u8"), ("succeeded", "<u8"), ("failed", "<u8"), ("comm", "S16")]
)
"""struct migration: calls of the kernel's migrate_pages(), pages that were moved, and pages that
could not be moved. `comm` is the name of the thread that made the first call; it is set only in the
map migrations_by."""

MIGRATION_KEY_DTYPE = np.dtype([("pid", "<u4"), ("mode", "<u2"), ("reason", "<u2")])
"""struct migration_key: pid of the process that moves pages; migration mode; reason."""

DISTURBANCE_KEY_DTYPE = np.dtype(
    [("owner", "<u4"), ("deed", "u1"), ("from", "u1"), ("to", "u1"), ("own", "?"), ("comm", "S16")]
)
"""struct disturbance_key: owner of the pages, action, the pages' nodes before and after the action
(255: none), and name of the actor. "own" is set if the actor is the owner itself."""

DISTURBANCE_DTYPE = np.dtype(
    [
        ("pages", "<u8"),  # moved, reclaimed or collapsed
        ("kept", "<u8"),  # pages that could not be moved; counted once per attempt
        ("last_ns", "<u8"),  # CLOCK_MONOTONIC
        ("mover", "<u4"),  # pid of the latest actor
        ("reserved", "<u4"),
    ]
)
"""struct disturbance: counters of one disturbance_key."""

DEEDS = {64: "reclaim", 65: "collapse", 66: "unknown"}
"""Actions by number: "reclaim" and "collapse" are not migrations; "unknown" is a migration whose
reason is unknown. Smaller numbers are the kernel's migration reasons."""
NO_NODE = 255

DROP_DTYPE = np.dtype("<u8")

DROPS = ("fault_records", "migration_calls", "disturbed_pages")
"""Names of the values of enum drop: events that the programs could not record or count."""

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
"""The maps whose fds the loader sends to the daemon, and the size of a value in each map."""

PROGRAMS = {
    "page_fault_user": "on_page_fault",
    "page_fault_kernel": "on_page_fault",
    "page_access": "on_page_access",
    # The program for the end of a migration is attached before the program for its start. So, for a
    # moment, the end of a migration can be seen without its start; this has no effect. In the
    # opposite order, a start without its end could be seen, and would stay recorded.
    "mm_migrate_pages": "on_migrate_pages",
    "mm_migrate_pages_start": "on_migrate_pages_start",
    "mm_collapse_huge_page": "on_collapse",
}
"""The program for each raw tracepoint. The programs are attached in this order when the daemon
starts, except those of WHILE_WATCHED."""

WHILE_WATCHED = ("page_access",)
"""Tracepoints of the kernel module. Their programs are attached only while a process is watched,
because an attached program keeps the module from being unloaded. The page-fault programs stay
attached: attaching them patches the kernel's page-fault entry, so the daemon attaches them once,
when it starts, and not for each session."""


class Traced(NamedTuple):
    """A kernel function that a program is attached to."""

    function: str
    parameters: int  # required number of parameters
    program: str
    returns: bool  # attached to the function's return, not its entry
    observes: str  # events that can't be observed without the function, as text for users


TRACED = (
    Traced("mpol_misplaced", 3, "on_hint_fault", False, "NUMA hint faults"),
    Traced("do_swap_page", 1, "on_swap_page", True, "major faults"),
    Traced("migration_entry_wait", 3, "on_page_in_motion", False, "waits for migrations"),
    Traced("remove_migration_pte", 4, "on_page_back", False, "page moves by others"),
    Traced("try_to_unmap_one", 4, "on_page_gone", True, "page reclaim"),
)
"""The kernel functions that programs are attached to. They are not a stable interface, so each
function is looked up in the kernel's BTF."""


class MigrationCounts(TypedDict):
    """Calls of the kernel's migrate_pages(), pages that moved, and pages that failed to move."""

    calls: int
    succeeded: int
    failed: int


class MoverCounts(MigrationCounts):
    """Migrations by one process, with one mode and reason."""

    pid: int
    comm: str  # name of the thread that made the first call
    mode: str  # the kernel's name
    reason: str  # the kernel's name


class AccessCounts(TypedDict):
    """Events of the tracepoint sentinel:page_access for one process."""

    accesses: int
    writes: int
    epoch: int  # epoch of the latest event


class Disturbance(TypedDict):
    """Pages of a watched process that were moved, reclaimed or collapsed, but not by the daemon."""

    by: str  # name of the thread that did it
    pid: int  # pid of the latest thread of that name
    own: bool  # the watched process did it itself
    deed: str  # the kernel's name of the migration reason, or a value of DEEDS
    from_node: int | None  # None: unknown
    to_node: int | None  # None: unknown, or the pages were not moved to a node
    pages: int
    kept: int  # pages that could not be moved; counted once per attempt
    last_ns: int  # CLOCK_MONOTONIC


class EbpfCounters(TypedDict):
    """Counters since the programs were attached. The counters of a process begin when the daemon
    begins to watch the process."""

    faults: dict[int, dict[str, int]]  # by pid, then by one of FAULT_KINDS
    accesses: dict[int, AccessCounts]  # by pid
    migrations: dict[str, MigrationCounts]  # by reason
    movers: list[MoverCounts]
    disturbances: dict[int, list[Disturbance]]  # by pid
    dropped: dict[str, int]  # by one of DROPS
