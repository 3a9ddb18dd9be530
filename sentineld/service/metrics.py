# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics; metrics_server.py serves them.

Each scrape takes one snapshot. METRICS and SCRAPE_DURATION list the daemon's own metrics;
docs/metrics.md is generated from them. The series of a session disappear when the session ends.
Labels have few values: no tensor, layer or address is a label.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import ProcessCollector

from sentineld.service.exposition import Collect, Family, Rows
from sentineld.service.snapshot import DaemonSnapshot, SessionSnapshot
from sentineld.session.lifecycle import State


@dataclass(frozen=True)
class MetricSpec:
    """A metric, and the function that reads its values from a snapshot."""

    name: str
    kind: str  # "counter" or "gauge"
    help: str
    labels: tuple[str, ...]
    rows: Callable[[DaemonSnapshot], Rows]


def _session(
    name: str, kind: str, text: str, value: Callable[[SessionSnapshot], float | None]
) -> MetricSpec:
    """A metric with one value per session."""

    def rows(snapshot: DaemonSnapshot) -> Rows:
        for session in snapshot.sessions:
            number = value(session)
            if number is not None:
                yield (session.session,), number

    return MetricSpec(name, kind, text, ("session",), rows)


def _session_by(
    name: str,
    kind: str,
    text: str,
    labels: tuple[str, ...],
    values: Callable[[SessionSnapshot], Rows],
) -> MetricSpec:
    """A metric with several values per session, distinguished by further labels."""

    def rows(snapshot: DaemonSnapshot) -> Rows:
        for session in snapshot.sessions:
            for key, number in values(session):
                yield (session.session, *key), number

    return MetricSpec(name, kind, text, ("session", *labels), rows)


def _session_keyed(
    name: str,
    kind: str,
    text: str,
    label: str,
    values: Callable[[SessionSnapshot], Mapping[str, float]],
) -> MetricSpec:
    """A metric with several values per session, by the value of one further label."""

    def rows(snapshot: DaemonSnapshot) -> Rows:
        for session in snapshot.sessions:
            for key, number in values(session).items():
                yield (session.session, key), number

    return MetricSpec(name, kind, text, ("session", label), rows)


def _keyed(values: Mapping[str, float] | Mapping[int, int]) -> Rows:
    return [((str(key),), value) for key, value in values.items()]


def _session_info(snapshot: DaemonSnapshot) -> Rows:
    for s in snapshot.sessions:
        job, rank = (s.job.name, s.job.rank) if s.job else ("", None)
        of_job = job, "" if rank is None else str(rank)
        yield (s.session, str(s.pid), str(s.state), s.policy, s.group, *of_job), 1


def _session_states(snapshot: DaemonSnapshot) -> Rows:
    states = [session.state for session in snapshot.sessions]
    for state in State:
        yield (str(state),), states.count(state)


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "sentineld_build_info",
        "gauge",
        "Always 1; the labels carry the versions of sentineld and Python.",
        ("version", "python"),
        lambda snapshot: [((snapshot.version, platform.python_version()), 1)],
    ),
    MetricSpec(
        "sentineld_heartbeat_timestamp_seconds",
        "gauge",
        "Unix time of the daemon's last heartbeat.",
        (),
        lambda snapshot: [((), snapshot.heartbeat_s)],
    ),
    MetricSpec(
        "sentineld_feature_available",
        "gauge",
        "1 if the feature works on this machine, else 0; sentinelctl doctor gives the reason.",
        ("feature",),
        lambda snapshot: _keyed(snapshot.features),
    ),
    MetricSpec(
        "sentineld_tier_capacity_bytes",
        "gauge",
        "Capacity of the tier; tier 0 is the fastest.",
        ("tier",),
        lambda snapshot: _keyed(snapshot.tier_capacity_bytes),
    ),
    MetricSpec(
        "sentineld_shared_budget_bytes",
        "gauge",
        "Fast memory that is divided among the sessions attached without --fast.",
        (),
        lambda snapshot: [] if snapshot.shared_bytes is None else [((), snapshot.shared_bytes)],
    ),
    MetricSpec(
        "sentineld_emulated_tiers_info",
        "gauge",
        "1 if the tiers are emulated; the label names the preset. Figures about tiers and moves "
        "then come from the emulation.",
        ("preset",),
        lambda snapshot: [((snapshot.emulated,), 1)] if snapshot.emulated else [],
    ),
    MetricSpec(
        "sentineld_migration_bandwidth_bytes_per_second",
        "gauge",
        "The migration bandwidth that plans assume before any correction.",
        (),
        lambda snapshot: [((), snapshot.migration_bytes_per_s)],
    ),
    MetricSpec(
        "sentineld_kernel_migrated_pages_total",
        "counter",
        "Pages that the kernel tried to migrate, by reason and result (eBPF).",
        ("reason", "result"),
        lambda snapshot: snapshot.kernel_migrations.items(),
    ),
    MetricSpec(
        "sentineld_events_dropped_total",
        "counter",
        "Events that the eBPF programs could not record or count, by kind of event.",
        ("queue",),
        lambda snapshot: _keyed(snapshot.events_dropped),
    ),
    MetricSpec(
        "sentineld_machine_energy_joules_total",
        "counter",
        "Energy that the whole machine has used since the daemon started, by RAPL zone.",
        ("zone",),
        lambda snapshot: _keyed(snapshot.machine_joules),
    ),
    MetricSpec(
        "sentineld_sessions", "gauge", "Sessions in each state.", ("state",), _session_states
    ),
    MetricSpec(
        "sentineld_session_info",
        "gauge",
        "Always 1; the labels carry the session's process ID, state and policy. With policy "
        "temperature, `group` names the group. For a rank of a distributed training, "
        "`training_job` and `rank` name the job and the rank.",
        ("session", "pid", "state", "policy", "group", "training_job", "rank"),
        _session_info,
    ),
    _session(
        "sentineld_job_ranks",
        "gauge",
        "Number of ranks of the distributed training to which the session belongs.",
        lambda s: s.job.world_size if s.job else None,
    ),
    _session(
        "sentineld_budget_bytes",
        "gauge",
        "Fast memory that the session may use.",
        lambda s: s.budget_bytes,
    ),
    _session(
        "sentineld_share_bytes",
        "gauge",
        "The session's share of the shared budget. The session's budget becomes this share as soon "
        "as other sessions have released the memory.",
        lambda one: one.share_bytes,
    ),
    _session(
        "sentineld_share_slowdown_ratio",
        "gauge",
        "Predicted time of the session's step, divided by its time with an equal share of the "
        "shared budget. With policy temperature: predicted run time instead of a step's time.",
        lambda one: one.relative_slowdown,
    ),
    _session(
        "sentineld_charged_bytes",
        "gauge",
        "Fast memory charged to the session: resident pages, including dead ones, and unmanaged "
        "tensors. With policy temperature: resident anonymous memory.",
        lambda s: s.charged_bytes,
    ),
    _session(
        "sentineld_peak_bytes",
        "gauge",
        "Largest sum of live tensor bytes in a step. With policy temperature: largest sum of "
        "resident and swapped anonymous memory since the attach.",
        lambda s: s.peak_bytes,
    ),
    _session(
        "sentineld_unmanaged_bytes",
        "gauge",
        "Live tensor bytes outside the memory that the daemon manages.",
        lambda s: s.unmanaged_bytes,
    ),
    _session_keyed(
        "sentineld_resident_bytes",
        "gauge",
        "Resident bytes of heap and arena on the tier. With policy temperature: anonymous memory; "
        "tier 1 is swap.",
        "tier",
        lambda s: {str(tier): size for tier, size in s.resident_bytes.items()},
    ),
    _session("sentineld_steps_total", "counter", "Training steps started.", lambda s: s.steps),
    _session(
        "sentineld_step_boundaries",
        "gauge",
        "Boundaries passed in the current step, not counting the one at its beginning.",
        lambda s: s.boundaries,
    ),
    _session_by(
        "sentineld_migrated_bytes_total",
        "counter",
        "Bytes of requested moves, by direction, reason and result.",
        ("direction", "reason", "result"),
        lambda s: s.moved_bytes.items(),
    ),
    _session(
        "sentineld_late_moves_total",
        "counter",
        "Moves not complete at their deadline.",
        lambda s: s.late_moves,
    ),
    _session(
        "sentineld_barrier_timeouts_total",
        "counter",
        "Barriers that timed out or found the daemon's heartbeat stale: the training continued "
        "before the moves were complete.",
        lambda s: s.barrier_timeouts,
    ),
    _session(
        "sentineld_barrier_wait_seconds_total",
        "counter",
        "Time that the training waited for moves.",
        lambda s: s.barrier_wait_ns / 1e9,
    ),
    _session_keyed(
        "sentineld_late_promotion_boundaries",
        "gauge",
        "Boundaries at which the live plan's promotions are late for lack of bandwidth, by "
        "decision: stall (the training waits for them), leave (it does not), undecided.",
        "decision",
        lambda s: s.stalls,
    ),
    _session(
        "sentineld_diverged_steps_total",
        "counter",
        "Steps whose allocations or boundaries did not fit the live layout.",
        lambda s: s.diverged_steps,
    ),
    _session_keyed(
        "sentineld_plan_corrections_total",
        "counter",
        "Corrected plans, by the assumption of the live plan that did not hold: migration "
        "(bandwidth), times (of stretches) or faults (their latency, on paged tiers).",
        "cause",
        lambda s: s.corrections,
    ),
    _session(
        "sentineld_planned_migration_bandwidth_bytes_per_second",
        "gauge",
        "Migration bandwidth that the session's plans assume: the machine's figure, unless a "
        "correction has lowered it.",
        lambda s: s.migration_bytes_per_s,
    ),
    _session_keyed(
        "sentineld_records_lost_total",
        "counter",
        "Records lost because the shim's ring or the module's log was full, or because an "
        "allocation of the module failed.",
        "queue",
        lambda s: s.lost,
    ),
    _session_keyed(
        "sentineld_samples_total",
        "counter",
        "Page samples taken by the kernel module. Samples of other backends are not counted.",
        "backend",
        lambda s: s.samples,
    ),
    _session(
        "sentineld_fast_share_ratio",
        "gauge",
        "Share of sampled page accesses served by the fast tier in the last metered step.",
        lambda s: s.fast_share,
    ),
    _session(
        "sentineld_plan_duration_seconds",
        "gauge",
        "Time that it took to make the live plan.",
        lambda s: s.plan_duration_s,
    ),
    _session_keyed(
        "sentineld_step_energy_joules",
        "gauge",
        "Mean energy of a step under the live plan, by source: rapl (of the whole machine) or "
        "modelled (of the session).",
        "source",
        lambda s: s.step_joules,
    ),
    _session_keyed(
        "sentineld_page_faults_total",
        "counter",
        "Page faults of the process by kind: the type of the access that faulted, or a cause that "
        "the kernel found while it handled the fault (eBPF).",
        "kind",
        lambda s: s.page_faults,
    ),
    _session_keyed(
        "sentineld_page_accesses_total",
        "counter",
        "Accesses to armed pages, by source: the module's log, or its tracepoint, which has no "
        "events for huge pages.",
        "source",
        lambda s: s.page_accesses,
    ),
    _session_by(
        "sentineld_emulated_delay_seconds_total",
        "counter",
        "Emulated tiers only: delay that the timing model computes for slow pages (owed), and "
        "delay injected into the process so far (paid).",
        ("kind",),
        lambda s: [((kind,), ns / 1e9) for kind, ns in s.emulated_delay_ns.items()],
    ),
    _session_keyed(
        "sentineld_paging_bytes_total",
        "counter",
        "Paged tiers only: bytes that the process has read from its file and written to it.",
        "direction",
        lambda s: s.paging_bytes,
    ),
    _session(
        "sentineld_paging_faults_total",
        "counter",
        "Paged tiers only: accesses to pages that were in the file, or were being fetched or "
        "evicted.",
        lambda s: s.paging_faults,
    ),
    _session(
        "sentineld_paging_overruns_total",
        "counter",
        "Paged tiers only: page frames taken beyond the budget because no page could leave memory.",
        lambda s: s.paging_overruns,
    ),
    _session_by(
        "sentineld_disturbed_pages_total",
        "counter",
        "Pages of the process that were moved, reclaimed or collapsed into huge pages, or that "
        "could not be moved, by reason and result (eBPF). Moves requested by the daemon or by the "
        "process itself are not counted.",
        ("reason", "result"),
        lambda s: s.disturbed_pages.items(),
    ),
    _session_keyed(
        "sentineld_swap_bytes_total",
        "counter",
        "Policy temperature only: bytes that the daemon has paged out (out), that the process has "
        "swapped in by accesses (returned), and that the daemon has read ahead (prefetched).",
        "direction",
        lambda s: s.swap_bytes,
    ),
    _session_keyed(
        "sentineld_temperature_cpu_seconds_total",
        "counter",
        "Policy temperature only: CPU time of the daemon for the session's scans (scan), and for "
        "page-outs and prefetches (move).",
        "kind",
        lambda s: s.heat_cpu_s,
    ),
    _session_keyed(
        "sentineld_skipped_bytes",
        "gauge",
        "Policy temperature only: memory that is never paged out, by kind: locked, huge (hugetlb) "
        "or shared.",
        "kind",
        lambda s: s.skipped_bytes,
    ),
    _session_keyed(
        "sentineld_processes",
        "gauge",
        "Policy temperature only: processes of the session, by kind: managed, or left_out (they "
        "cannot be managed).",
        "kind",
        lambda s: s.processes,
    ),
)

SCRAPE_DURATION = (
    "sentineld_scrape_duration_seconds",
    "Time that it took to collect the data of this scrape.",
)


def collector(take_snapshot: Callable[[], DaemonSnapshot]) -> Collect:
    """Collects the daemon's metrics, and the metrics of its process (CPU time, memory)."""
    process = ProcessCollector(registry=None)

    def collect() -> Iterator[Family]:
        begin_s = time.perf_counter()
        snapshot = take_snapshot()
        duration_s = time.perf_counter() - begin_s
        for spec in METRICS:
            yield Family(spec.name, spec.kind, spec.help, spec.labels, spec.rows(snapshot))
        name, help_text = SCRAPE_DURATION
        yield Family(name, "gauge", help_text, (), [((), duration_s)])
        for metric in process.collect():
            for sample in metric.samples:  # each metric has one
                rows = [((), sample.value)]
                yield Family(sample.name, metric.type, metric.documentation, (), rows)

    return collect
