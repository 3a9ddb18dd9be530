# SPDX-License-Identifier: Apache-2.0
"""One consistent picture of the daemon for its metrics."""

from __future__ import annotations

from sentineld import __version__
from sentineld.disturbances import by_reason
from sentineld.machine import Machine
from sentineld.metrics import DaemonSnapshot, SessionSnapshot
from sentineld.observe.ebpf_model import EbpfCounters
from sentineld.session import Session
from sentineld.sessions import Sessions


def take_snapshot(machine: Machine, sessions: Sessions) -> DaemonSnapshot:
    """The daemon now. Called from the metrics server's threads."""
    counters = machine.probing.counters()
    return DaemonSnapshot(
        version=__version__,
        heartbeat_s=sessions.beat_s,
        features=machine.features(),
        tier_capacity_bytes={
            index: tier.capacity_bytes
            for index, tier in enumerate(machine.tiers.tiers if machine.tiers else ())
        },
        migration_bytes_per_s=machine.tiers.migration_bytes_per_s if machine.tiers else 0.0,
        emulated=machine.substrate.emulated,
        kernel_migrations={
            (reason, result): counts[result]
            for reason, counts in (counters["migrations"] if counters else {}).items()
            for result in ("succeeded", "failed")
        },
        events_dropped=counters["dropped"] if counters else {},
        sessions=tuple(_session(session, counters) for session in sessions.all()),
    )


def _session(session: Session, counters: EbpfCounters | None) -> SessionSnapshot:
    words = session.link.segment.words()
    managed, profile, totals = session.managed, session.profile, session.totals()
    faults = counters["faults"].get(session.link.pid, {}) if counters else {}
    seen = counters["accesses"].get(session.link.pid) if counters else None
    disturbances = counters["disturbances"].get(session.link.pid, []) if counters else []
    residency = session.link.residency
    delay = {"owed": residency.owed_ns, "paid": residency.paid_ns} if residency else {}
    page_accesses = {"module": totals.samples}
    if seen is not None:
        page_accesses["tracepoint"] = seen["accesses"]
    return SessionSnapshot(
        session=session.name,
        pid=session.link.pid,
        state=session.lifecycle.state,
        policy=session.goal.policy if session.goal else "",
        budget_bytes=session.budget_bytes,
        charged_bytes=managed.fast_bytes() if managed else 0,
        peak_bytes=profile.peak_bytes if profile else 0,
        unmanaged_bytes=words.unmanaged_bytes,
        resident_bytes=dict(enumerate(managed.mover.by_tier())) if managed else {},
        steps=words.step,
        boundaries=words.position & 0xFFFFFFFF,
        moved_bytes=totals.moved_by_entry(),
        late_moves=totals.late_moves,
        barrier_timeouts=words.barrier_timeouts,
        barrier_wait_ns=words.barrier_wait_ns,
        diverged_steps=words.diverged_steps,
        corrections=session.corrections,
        migration_bytes_per_s=(
            session.correcting.tiers.migration_bytes_per_s if session.correcting else None
        ),
        lost={"ring": words.ring_lost, "log": totals.samples_lost},
        samples={"module": totals.samples},
        fast_share=session.last_meter.fast_share if session.last_meter else None,
        plan_duration_s=session.plan_duration_s,
        page_faults=faults,
        page_accesses=page_accesses,
        emulated_delay_ns=delay,
        disturbed_pages=by_reason(disturbances),
    )
