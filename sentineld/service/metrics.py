# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics: one consistent snapshot a scrape, served on the loopback.

METRICS is the whole list; docs/metrics.md is generated from it. The series of
a session vanish with it. Labels are bounded: never a tensor, a layer or an
address.
"""

from __future__ import annotations

import platform
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sentineld.base.errors import SentinelError
from sentineld.session.lifecycle import State


@dataclass(frozen=True)
class SessionSnapshot:
    """One session at one moment. Counters count since the session's begin and never fall.

    None: not known (yet); the series is then left out.
    """

    session: str  # unique for the daemon's life, e.g. PID-STARTTIME
    pid: int
    state: State
    policy: str = ""
    budget_bytes: int = 0
    charged_bytes: int = 0
    peak_bytes: int = 0
    unmanaged_bytes: int = 0  # tensor bytes that neither heap nor arena holds
    resident_bytes: Mapping[int, int] = field(default_factory=dict)  # by tier
    steps: int = 0
    boundaries: int = 0  # of the current step, passed so far
    moved_bytes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """By (direction, reason, result): direction promote or demote; result moved, skipped or
    failed; reason why it was asked for (plan, initial, heal) or why it was not moved."""
    late_moves: int = 0
    barrier_timeouts: int = 0
    barrier_wait_ns: int = 0
    diverged_steps: int = 0
    corrections: Mapping[str, int] = field(default_factory=dict)  # plans made again, by cause
    migration_bytes_per_s: float | None = None  # that its plans count upon
    lost: Mapping[str, int] = field(default_factory=dict)  # records, by queue: ring, log
    samples: Mapping[str, int] = field(default_factory=dict)  # page samples, by backend
    fast_share: float | None = None  # of the last metered step; 0..1
    plan_duration_s: float | None = None  # of the plan that is live
    page_faults: Mapping[str, int] = field(default_factory=dict)  # by kind; eBPF
    page_accesses: Mapping[str, int] = field(default_factory=dict)
    """Accesses to armed pages by who counted them: module, tracepoint."""
    emulated_delay_ns: Mapping[str, int] = field(default_factory=dict)
    """Emulated tiers only: "owed" by the timing model, "paid" by waiting."""
    disturbed_pages: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Pages by (reason, result) that others than the daemon moved or took; eBPF."""


@dataclass(frozen=True)
class DaemonSnapshot:
    """The daemon at one moment."""

    version: str
    heartbeat_s: float  # Unix time at which the daemon last refreshed the shims' heartbeats
    features: Mapping[str, bool] = field(default_factory=dict)
    tier_capacity_bytes: Mapping[int, int] = field(default_factory=dict)  # by tier
    migration_bytes_per_s: float = 0.0
    emulated: str = ""  # preset of emulated tiers; "": the machine's own
    kernel_migrations: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Pages by (reason, result) that the kernel's migrate_pages() moved; eBPF, all processes
    that it watches."""
    events_dropped: Mapping[str, int] = field(default_factory=dict)  # eBPF, by queue
    sessions: tuple[SessionSnapshot, ...] = ()


Rows = Iterable[tuple[tuple[str, ...], float]]


@dataclass(frozen=True)
class MetricSpec:
    """A metric: rows() gives label values, in the order of labels, and the value in base units."""

    name: str
    kind: str  # "counter" or "gauge"
    help: str
    labels: tuple[str, ...]
    rows: Callable[[DaemonSnapshot], Rows]


def _session(
    name: str, kind: str, text: str, value: Callable[[SessionSnapshot], float | None]
) -> MetricSpec:
    """A metric with one value a session."""

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
    """A metric with several values a session, told apart by more labels."""

    def rows(snapshot: DaemonSnapshot) -> Rows:
        for session in snapshot.sessions:
            for key, number in values(session):
                yield (session.session, *key), number

    return MetricSpec(name, kind, text, ("session", *labels), rows)


def _keyed(values: Mapping[str, int] | Mapping[int, int]) -> Rows:
    return [((str(key),), value) for key, value in values.items()]


def _session_info(snapshot: DaemonSnapshot) -> Rows:
    for s in snapshot.sessions:
        yield (s.session, str(s.pid), str(s.state), s.policy), 1


def _session_states(snapshot: DaemonSnapshot) -> Rows:
    states = [session.state for session in snapshot.sessions]
    for state in State:
        yield (str(state),), states.count(state)


METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(
        "sentineld_build_info",
        "gauge",
        "Always 1; the labels name the versions.",
        ("version", "python"),
        lambda snapshot: [((snapshot.version, platform.python_version()), 1)],
    ),
    MetricSpec(
        "sentineld_heartbeat_timestamp_seconds",
        "gauge",
        "Unix time at which the daemon last refreshed its heartbeats.",
        (),
        lambda snapshot: [((), snapshot.heartbeat_s)],
    ),
    MetricSpec(
        "sentineld_feature_available",
        "gauge",
        "1 if a way of observing or moving works here, else 0; sentinelctl doctor says why.",
        ("feature",),
        lambda snapshot: _keyed(snapshot.features),
    ),
    MetricSpec(
        "sentineld_tier_capacity_bytes",
        "gauge",
        "Memory of a tier; tier 0 is the fastest.",
        ("tier",),
        lambda snapshot: _keyed(snapshot.tier_capacity_bytes),
    ),
    MetricSpec(
        "sentineld_emulated_tiers_info",
        "gauge",
        "1 where the tiers are emulated, by the preset that the label names; all figures are the "
        "emulation's then.",
        ("preset",),
        lambda snapshot: [((snapshot.emulated,), 1)] if snapshot.emulated else [],
    ),
    MetricSpec(
        "sentineld_migration_bandwidth_bytes_per_second",
        "gauge",
        "What plans assume that pages move at between the tiers.",
        (),
        lambda snapshot: [((), snapshot.migration_bytes_per_s)],
    ),
    MetricSpec(
        "sentineld_kernel_migrated_pages_total",
        "counter",
        "Pages that the kernel was asked to migrate, by who asked and what came of it (eBPF).",
        ("reason", "result"),
        lambda snapshot: snapshot.kernel_migrations.items(),
    ),
    MetricSpec(
        "sentineld_events_dropped_total",
        "counter",
        "Events that a full eBPF queue lost.",
        ("queue",),
        lambda snapshot: _keyed(snapshot.events_dropped),
    ),
    MetricSpec(
        "sentineld_sessions", "gauge", "Sessions in each state.", ("state",), _session_states
    ),
    MetricSpec(
        "sentineld_session_info",
        "gauge",
        "Always 1; the labels name a session's process, state and policy.",
        ("session", "pid", "state", "policy"),
        _session_info,
    ),
    _session(
        "sentineld_budget_bytes",
        "gauge",
        "Fast memory that the session may use.",
        lambda s: s.budget_bytes,
    ),
    _session(
        "sentineld_charged_bytes",
        "gauge",
        "Fast memory charged to the session: resident pages, dead ones too, and unmanaged tensors.",
        lambda s: s.charged_bytes,
    ),
    _session(
        "sentineld_peak_bytes",
        "gauge",
        "Largest sum of live tensor bytes in a step.",
        lambda s: s.peak_bytes,
    ),
    _session(
        "sentineld_unmanaged_bytes",
        "gauge",
        "Live tensor bytes outside the memory that the daemon moves.",
        lambda s: s.unmanaged_bytes,
    ),
    _session_by(
        "sentineld_resident_bytes",
        "gauge",
        "Resident tensor pages on each tier.",
        ("tier",),
        lambda s: _keyed(s.resident_bytes),
    ),
    _session("sentineld_steps_total", "counter", "Training steps begun.", lambda s: s.steps),
    _session(
        "sentineld_step_boundaries",
        "gauge",
        "Boundaries of the current step that have passed.",
        lambda s: s.boundaries,
    ),
    _session_by(
        "sentineld_migrated_bytes_total",
        "counter",
        "Bytes that were to move, by direction, why, and what came of it.",
        ("direction", "reason", "result"),
        lambda s: s.moved_bytes.items(),
    ),
    _session(
        "sentineld_late_moves_total",
        "counter",
        "Moves that were not complete at their deadline.",
        lambda s: s.late_moves,
    ),
    _session(
        "sentineld_barrier_timeouts_total",
        "counter",
        "Times that training went on without the moves that it waited for.",
        lambda s: s.barrier_timeouts,
    ),
    _session(
        "sentineld_barrier_wait_seconds_total",
        "counter",
        "Time that training waited for moves.",
        lambda s: s.barrier_wait_ns / 1e9,
    ),
    _session(
        "sentineld_diverged_steps_total",
        "counter",
        "Steps that allocated otherwise than the profiled one.",
        lambda s: s.diverged_steps,
    ),
    _session_by(
        "sentineld_plan_corrections_total",
        "counter",
        "Plans made again because something was not as the live one counted upon, by what it was: "
        "migration (bandwidth) or times (of stretches).",
        ("cause",),
        lambda s: _keyed(s.corrections),
    ),
    _session(
        "sentineld_planned_migration_bandwidth_bytes_per_second",
        "gauge",
        "What the session's plans count upon that pages move at, as measured where it was less "
        "than the machine promises.",
        lambda s: s.migration_bytes_per_s,
    ),
    _session_by(
        "sentineld_records_lost_total",
        "counter",
        "Records lost because the shim's ring or the module's log was full.",
        ("queue",),
        lambda s: _keyed(s.lost),
    ),
    _session_by(
        "sentineld_samples_total",
        "counter",
        "Page samples taken.",
        ("backend",),
        lambda s: _keyed(s.samples),
    ),
    _session(
        "sentineld_fast_share_ratio",
        "gauge",
        "Share of sampled page accesses that the fast tier served, in the last metered step.",
        lambda s: s.fast_share,
    ),
    _session(
        "sentineld_plan_duration_seconds",
        "gauge",
        "Time that making the live plan took.",
        lambda s: s.plan_duration_s,
    ),
    _session_by(
        "sentineld_page_faults_total",
        "counter",
        "Page faults of the process, by how they began or what the kernel found in them (eBPF).",
        ("kind",),
        lambda s: _keyed(s.page_faults),
    ),
    _session_by(
        "sentineld_page_accesses_total",
        "counter",
        "Accesses to armed pages, by who counted them; the two should agree.",
        ("source",),
        lambda s: _keyed(s.page_accesses),
    ),
    _session_by(
        "sentineld_emulated_delay_seconds_total",
        "counter",
        "Emulated tiers only: what slow pages cost by the timing model (owed), and what the "
        "process has waited for it (paid).",
        ("kind",),
        lambda s: [((kind,), ns / 1e9) for kind, ns in s.emulated_delay_ns.items()],
    ),
    _session_by(
        "sentineld_disturbed_pages_total",
        "counter",
        "Pages of the process that others than the daemon moved or took away, by why (eBPF).",
        ("reason", "result"),
        lambda s: s.disturbed_pages.items(),
    ),
)

SCRAPE_DURATION = (
    "sentineld_scrape_duration_seconds",
    "Time that taking the snapshot for this scrape took.",
)


class SnapshotCollector(Collector):
    """Turns one snapshot into metric families."""

    def __init__(self, take_snapshot: Callable[[], DaemonSnapshot]) -> None:
        self._take_snapshot = take_snapshot

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        begin_s = time.perf_counter()
        snapshot = self._take_snapshot()
        duration_s = time.perf_counter() - begin_s
        for spec in METRICS:
            family: CounterMetricFamily | GaugeMetricFamily
            if spec.kind == "counter":
                family = CounterMetricFamily(spec.name, spec.help, labels=spec.labels)
            else:
                family = GaugeMetricFamily(spec.name, spec.help, labels=spec.labels)
            for labels, value in spec.rows(snapshot):
                family.add_metric(labels, value)
            yield family
        yield GaugeMetricFamily(*SCRAPE_DURATION, value=duration_s)


def make_registry(take_snapshot: Callable[[], DaemonSnapshot]) -> CollectorRegistry:
    """A registry of the daemon's metrics and of its own process's (CPU time, memory)."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(take_snapshot))
    ProcessCollector(registry=registry)
    return registry


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10  # seconds for a client that says nothing

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """A scrape is no news."""


def serve(address: str, port: int, take_snapshot: Callable[[], DaemonSnapshot]) -> WSGIServer:
    """Serve metrics from a thread; port 0 picks a free one (server_port of the result).

    take_snapshot is called from the server's threads, once a scrape. End with
    shutdown() and server_close(). Raises SentinelError("bad-config") where the
    address can't be bound.
    """
    kind = _ServerV6 if ":" in address else _Server
    app = make_wsgi_app(make_registry(take_snapshot))
    try:
        server = make_server(address, port, app, server_class=kind, handler_class=_QuietHandler)
    except OSError as error:
        raise SentinelError(
            "bad-config",
            f"metrics can't be served on {address}:{port}: {error.strerror or error}",
            "set metrics_address and metrics_port; port 0 turns metrics off",
        ) from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
