# SPDX-License-Identifier: Apache-2.0
"""The values of one metrics scrape. collect.py fills them in; metrics.py names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentineld.model.job import Job
from sentineld.session.lifecycle import State


# Not frozen: the creation of a frozen object with so many fields takes seven times as long.
@dataclass(slots=True)
class SessionSnapshot:
    """One session at one moment. Counters are 0 when the session begins and never decrease. The
    eBPF counters are an exception: they are discarded when the process is no longer attached or
    recorded, and begin at 0 when it is attached or recorded again.

    If a value is None, it is unknown or does not apply to the session, and its series is omitted.
    """

    session: str  # unique for the daemon's life, e.g. PID-STARTTIME
    pid: int
    state: State
    job: Job | None = None
    policy: str = ""
    budget_bytes: int = 0
    charged_bytes: int = 0
    peak_bytes: int = 0
    share_bytes: int | None = None  # of the shared budget; None: the session has its own budget
    relative_slowdown: float | None = None  # predicted slowdown / that with an equal share
    unmanaged_bytes: int = 0  # live tensor bytes outside heap and arena
    resident_bytes: Mapping[int, int] = field(default_factory=dict)  # by tier
    steps: int = 0
    boundaries: int = 0  # boundaries passed in the current step, not counting boundary 0
    moved_bytes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Bytes by (direction, reason, result). direction: promote or demote. result: moved, skipped or
    failed. reason: the move's origin (plan, initial, heal) or the cause of the skip or failure."""
    late_moves: int = 0
    barrier_timeouts: int = 0
    barrier_wait_ns: int = 0
    stalls: Mapping[str, int] = field(default_factory=dict)
    """Number of boundaries by decision: stall (the training waits), leave (it does not wait) or
    undecided. These boundaries are the deadlines of the live plan's late promotions (Plan.late)."""
    diverged_steps: int = 0
    corrections: Mapping[str, int] = field(default_factory=dict)  # corrected plans, by cause
    migration_bytes_per_s: float | None = None  # bandwidth that the plans assume
    lost: Mapping[str, int] = field(default_factory=dict)  # lost records, by queue: ring, log
    samples: Mapping[str, int] = field(default_factory=dict)  # page samples, by backend
    fast_share: float | None = None  # fast share of the last metered step, 0..1
    plan_duration_s: float | None = None  # time to make the live plan
    step_joules: Mapping[str, float] = field(default_factory=dict)
    """Mean energy of a step under the live plan, by source (rapl or modelled). At most one source
    has a value."""
    page_faults: Mapping[str, int] = field(default_factory=dict)  # by kind; counted by eBPF
    page_accesses: Mapping[str, int] = field(default_factory=dict)
    """Accesses to armed pages, as counted by two sources: module, tracepoint."""
    emulated_delay_ns: Mapping[str, int] = field(default_factory=dict)
    """For emulated tiers only. owed: delay that the timing model has computed so far; paid: delay
    injected so far."""
    paging_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes read from the file (read) and written to it (written). This and the next two values are
    for paged tiers only."""
    paging_faults: int | None = None  # accesses that waited for a page
    paging_overruns: int | None = None  # page frames taken beyond the budget
    disturbed_pages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Disturbed pages by (reason, result), as by_reason() in disturbances.py adds them up from the
    eBPF counters."""
    swap_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that left memory or came back, by direction: out, returned, prefetched. This and the
    next two values are for policy `temperature` only."""
    heat_cpu_s: Mapping[str, float] = field(default_factory=dict)
    """CPU time of the daemon, by kind: scan, move."""
    skipped_bytes: Mapping[str, int] = field(default_factory=dict)
    """Memory that is never paged out, by kind: locked, huge, shared."""
    group: str = ""  # names the tree or the cgroup; empty for a single process
    processes: Mapping[str, int] = field(default_factory=dict)
    """Processes, by kind: managed, left_out (can't be managed). Policy `temperature` only."""


@dataclass(frozen=True)
class DaemonSnapshot:
    """The daemon at one moment."""

    version: str
    heartbeat_s: float  # Unix time at which the daemon last refreshed the shims' heartbeats
    features: Mapping[str, bool] = field(default_factory=dict)
    tier_capacity_bytes: Mapping[int, int] = field(default_factory=dict)  # by tier
    migration_bytes_per_s: float = 0.0
    shared_bytes: int | None = None  # the shared budget; None: there is none
    emulated: str = ""  # preset of the emulated tiers; "": the tiers are not emulated
    kernel_migrations: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Pages handled by the kernel's migrate_pages() on the whole machine, by (reason, result);
    counted by eBPF."""
    # Events that the eBPF programs dropped, by kind of event (kernel_events.DROPS).
    events_dropped: Mapping[str, int] = field(default_factory=dict)
    machine_joules: Mapping[str, float] = field(default_factory=dict)  # by RAPL zone
    sessions: tuple[SessionSnapshot, ...] = ()
