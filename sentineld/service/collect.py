# SPDX-License-Identifier: Apache-2.0
"""Collects the values of one metrics scrape."""

from __future__ import annotations

from sentineld import __version__
from sentineld.heat.session import TEMPERATURE, HeatSession
from sentineld.machine.machine import Machine
from sentineld.machine.shared import Share
from sentineld.model.kernel_events import EbpfCounters
from sentineld.service.disturbances import by_reason
from sentineld.service.sessions import Sessions
from sentineld.service.snapshot import DaemonSnapshot, SessionSnapshot
from sentineld.session.session import Session


def take_snapshot(machine: Machine, sessions: Sessions) -> DaemonSnapshot:
    """The daemon's current values. Called from the metrics server's threads."""
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
        shared_bytes=machine.shared.size_bytes if machine.shared is not None else None,
        emulated=machine.substrate.emulated,
        kernel_migrations={
            (reason, result): counts[result]
            for reason, counts in (counters["migrations"] if counters else {}).items()
            for result in ("succeeded", "failed")
        },
        events_dropped=counters["dropped"] if counters else {},
        machine_joules=machine.rapl.by_zone() if machine.rapl else {},
        sessions=(
            *(_shim_session(session, counters) for session in sessions.all()),
            *(_heat_session(session, machine.share_of(session)) for session in sessions.heat.all()),
        ),
    )


def _heat_session(session: HeatSession, share: Share | None) -> SessionSnapshot:
    figures = session.figures
    return SessionSnapshot(
        session=session.name,
        pid=session.pid,
        state=session.status.state,
        policy=TEMPERATURE,
        budget_bytes=figures.budget_bytes,
        charged_bytes=figures.resident_bytes,
        peak_bytes=figures.peak_bytes,
        share_bytes=share.share_bytes if share is not None else None,
        relative_slowdown=share.relative_slowdown if share is not None else None,
        resident_bytes={0: figures.resident_bytes, 1: figures.swapped_bytes},
        swap_bytes={
            "out": figures.paged_out_bytes,
            "returned": figures.returned_bytes,
            "prefetched": figures.prefetched_bytes,
        },
        heat_cpu_s={"scan": figures.scan_cpu_s, "move": figures.move_cpu_s},
        skipped_bytes=figures.skipped_bytes,
        group=session.target.title if session.target.is_group else "",
        processes={"managed": len(figures.processes), "left_out": figures.left_out},
    )


def _shim_session(session: Session, counters: EbpfCounters | None) -> SessionSnapshot:
    words = session.link.segment.words()
    following = session.following
    moves, samples = following.moves(), session.observing.sample_counts()
    planned, managed, correcting = following.planned, following.managed, following.correcting
    faults = counters["faults"].get(session.link.pid, {}) if counters else {}
    seen = counters["accesses"].get(session.link.pid) if counters else None
    disturbances = counters["disturbances"].get(session.link.pid, []) if counters else []
    residency = session.link.residency
    paging = session.link.paging.counts() if session.link.paging else None
    energy = following.energy  # read once: the session's thread may replace it by None
    used = energy.per_step() if energy else None
    share = session.machine.share_of(session.link)
    delay = {}
    if residency is not None and paging is None:
        delay = {"owed": residency.owed_ns, "paid": residency.paid_ns}
    page_accesses = {"module": samples.accesses}
    if seen is not None:
        page_accesses["tracepoint"] = seen["accesses"]
    return SessionSnapshot(
        session=session.name,
        pid=session.link.pid,
        job=session.link.job,
        state=session.lifecycle.state,
        policy=session.goal.policy if session.goal else "",
        budget_bytes=planned.budget_bytes if planned else 0,
        charged_bytes=managed.fast_bytes() if managed else 0,
        peak_bytes=planned.profile.peak_bytes if planned else 0,
        share_bytes=share.share_bytes if share is not None else None,
        relative_slowdown=share.relative_slowdown if share is not None else None,
        unmanaged_bytes=words.unmanaged_bytes,
        resident_bytes=dict(enumerate(managed.by_tier())) if managed else {},
        steps=words.step,
        boundaries=words.position & 0xFFFFFFFF,
        moved_bytes=moves.moved_by_entry(),
        late_moves=moves.late_moves,
        barrier_timeouts=words.barrier_timeouts,
        barrier_wait_ns=words.barrier_wait_ns,
        stalls=managed.stall_decisions()._asdict() if managed else {},
        diverged_steps=words.diverged_steps,
        corrections=following.corrections,
        migration_bytes_per_s=correcting.tiers.migration_bytes_per_s if correcting else None,
        lost={"ring": words.ring_lost, "log": samples.lost},
        samples={"module": samples.taken},
        fast_share=session.last_meter.fast_share if session.last_meter else None,
        plan_duration_s=planned.plan_duration_s if planned else None,
        step_joules={str(used.source): used.joules_per_step} if used else {},
        page_faults=faults,
        page_accesses=page_accesses,
        emulated_delay_ns=delay,
        paging_bytes={"read": paging.bytes_read, "written": paging.bytes_written} if paging else {},
        paging_faults=paging.faults if paging else None,
        paging_overruns=paging.overruns if paging else None,
        disturbed_pages=by_reason(disturbances),
    )
