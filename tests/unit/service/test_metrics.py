# SPDX-License-Identifier: Apache-2.0
"""Metrics as the HTTP server serves them, read back with Prometheus's own parser."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from docs.generate import page_is_current
from docs.metrics_page import metrics_page
from sentineld.model.job import Job
from sentineld.service.metrics import METRICS, collector
from sentineld.service.metrics_server import MetricsServer
from sentineld.service.snapshot import DaemonSnapshot, SessionSnapshot
from sentineld.session.lifecycle import State

FULL = SessionSnapshot(
    session="71-9000",
    pid=71,
    state=State.MANAGED,
    job=Job("bert-7", 5, 16, 1),
    policy="sentinel",
    budget_bytes=50 << 20,
    charged_bytes=49 << 20,
    peak_bytes=250 << 20,
    share_bytes=52 << 20,
    relative_slowdown=0.97,
    unmanaged_bytes=4096,
    resident_bytes={0: 48 << 20, 1: 190 << 20},
    steps=12,
    boundaries=480,
    moved_bytes={("promote", "plan", "moved"): 8192, ("demote", "busy", "skipped"): 4096},
    late_moves=3,
    barrier_timeouts=1,
    barrier_wait_ns=1_500_000_000,
    stalls={"stall": 1, "leave": 2, "undecided": 0},
    diverged_steps=2,
    corrections={"migration": 2},
    migration_bytes_per_s=86e6,
    lost={"ring": 0, "log": 5},
    samples={"module": 70000},
    fast_share=0.93,
    plan_duration_s=0.25,
    step_joules={"modelled": 12.5},
    page_faults={"missing_write": 9},
    page_accesses={"module": 70000, "tracepoint": 69999},
    emulated_delay_ns={"owed": 2_000_000_000, "paid": 1_990_000_000},
    paging_bytes={"read": 7 << 20, "written": 3 << 20},
    paging_faults=17,
    paging_overruns=0,
    disturbed_pages={("demotion", "moved"): 812, ("demotion", "kept"): 3},
    swap_bytes={"out": 64 << 20, "returned": 3 << 20, "prefetched": 0},
    heat_cpu_s={"scan": 0.5, "move": 1.25},
    skipped_bytes={"locked": 4096},
    group="cgroup /sys/fs/cgroup/app",
    processes={"managed": 3, "left_out": 1},
)


def snapshot(*sessions: SessionSnapshot) -> DaemonSnapshot:
    return DaemonSnapshot(
        version="0.1.0",
        heartbeat_s=time.time(),
        features={"module": True, "ebpf": False},
        tier_capacity_bytes={0: 2 << 30, 1: 1 << 30},
        migration_bytes_per_s=172e6,
        shared_bytes=1 << 30,
        emulated="cxl",
        kernel_migrations={("syscall", "succeeded"): 4},
        events_dropped={"fault_records": 0},
        machine_joules={"package-0": 81.5, "package-0-dram": 9.25},
        sessions=sessions,
    )


class Endpoint:
    """A metrics server that serves a snapshot set by the test."""

    def __init__(self) -> None:
        self.snapshot = snapshot(FULL)
        self.server = MetricsServer("127.0.0.1", 0, collector(lambda: self.snapshot))
        self.url = f"http://127.0.0.1:{self.server.port}/metrics"

    def scrape(self) -> dict[str, Metric]:
        with urllib.request.urlopen(self.url, timeout=60) as answer:
            text = answer.read().decode()
        return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.close()


def family_name(name: str) -> str:
    """The family name as Prometheus's parser reports it: without _total."""
    return name.removesuffix("_total")


def test_every_metric_of_a_full_snapshot_is_served(endpoint: Endpoint) -> None:
    families = endpoint.scrape()
    for spec in METRICS:
        family = families[family_name(spec.name)]
        assert family.type == spec.kind
        assert family.documentation == spec.help
        samples = [sample for sample in family.samples if sample.name == spec.name]
        assert samples, spec.name
        assert {frozenset(sample.labels) for sample in samples} == {frozenset(spec.labels)}
    assert "sentineld_scrape_duration_seconds" in families
    assert "process_cpu_seconds" in families


def test_values_are_exported_in_base_units(endpoint: Endpoint) -> None:
    families = endpoint.scrape()

    def value(name: str, **labels: str) -> float:
        wanted = {"session": "71-9000", **labels}
        samples = [s for s in families[family_name(name)].samples if s.labels == wanted]
        assert len(samples) == 1
        return samples[0].value

    assert value("sentineld_barrier_wait_seconds_total") == 1.5
    assert value("sentineld_charged_bytes") == 49 << 20
    assert value("sentineld_resident_bytes", tier="1") == 190 << 20
    assert value("sentineld_emulated_delay_seconds_total", kind="paid") == 1.99
    assert value("sentineld_paging_bytes_total", direction="written") == 3 << 20
    assert value("sentineld_paging_faults_total") == 17
    assert value("sentineld_swap_bytes_total", direction="out") == 64 << 20
    assert value("sentineld_temperature_cpu_seconds_total", kind="move") == 1.25
    assert value("sentineld_fast_share_ratio") == 0.93
    assert value("sentineld_step_energy_joules", source="modelled") == 12.5
    assert value("sentineld_records_lost_total", queue="log") == 5
    assert value("sentineld_plan_corrections_total", cause="migration") == 2
    assert value("sentineld_late_promotion_boundaries", decision="leave") == 2
    assert value("sentineld_planned_migration_bandwidth_bytes_per_second") == 86e6
    moved = {"direction": "demote", "reason": "busy", "result": "skipped"}
    assert value("sentineld_migrated_bytes_total", **moved) == 4096


def test_each_session_state_has_a_series(endpoint: Endpoint) -> None:
    endpoint.snapshot = snapshot(FULL, SessionSnapshot("72-9001", 72, State.REGISTERED))
    counts = {s.labels["state"]: s.value for s in endpoint.scrape()["sentineld_sessions"].samples}
    assert set(counts) == {str(state) for state in State}
    assert counts["managed"] == counts["registered"] == 1
    assert sum(counts.values()) == 2


def test_an_ended_sessions_series_disappear(endpoint: Endpoint) -> None:
    assert any("71-9000" in str(family.samples) for family in endpoint.scrape().values())
    endpoint.snapshot = snapshot()
    assert not any("71-9000" in str(family.samples) for family in endpoint.scrape().values())


def test_unknown_values_have_no_samples(endpoint: Endpoint) -> None:
    endpoint.snapshot = snapshot(SessionSnapshot("73-9002", 73, State.WARM_UP))
    families = endpoint.scrape()
    assert families["sentineld_fast_share_ratio"].samples == []
    assert families["sentineld_resident_bytes"].samples == []
    assert families["sentineld_steps"].samples[0].value == 0


def test_label_values_are_escaped(endpoint: Endpoint) -> None:
    policy = 'my "own"\npolicy\\1'
    endpoint.snapshot = snapshot(SessionSnapshot("74-9003", 74, State.MANAGED, policy=policy))
    (info,) = endpoint.scrape()["sentineld_session_info"].samples
    assert info.labels["policy"] == policy


def test_a_session_of_a_job_has_its_name_and_rank(endpoint: Endpoint) -> None:
    alone = SessionSnapshot("74-9003", 74, State.MANAGED)
    in_a_batch_script = SessionSnapshot("75-9004", 75, State.MANAGED, job=Job("4711"))
    endpoint.snapshot = snapshot(FULL, alone, in_a_batch_script)
    families = endpoint.scrape()
    found = [s.labels for s in families["sentineld_session_info"].samples]
    assert [(each["training_job"], each["rank"]) for each in found] == [
        ("bert-7", "5"),
        ("", ""),
        ("4711", ""),
    ]
    (ranks,) = families["sentineld_job_ranks"].samples
    assert (ranks.labels, ranks.value) == ({"session": "71-9000"}, 16)


def test_a_failing_snapshot_fails_the_scrape_but_not_the_server(endpoint: Endpoint) -> None:
    good = endpoint.snapshot
    endpoint.snapshot = None  # type: ignore[assignment]
    with pytest.raises(urllib.error.HTTPError) as failure:
        endpoint.scrape()
    assert failure.value.code == 500
    endpoint.snapshot = good
    assert "sentineld_steps" in endpoint.scrape()


UNITS = "bytes|joules|seconds|ratio|total|info|available|sessions|processes|boundaries|ranks|second"


@pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)
def test_names_follow_prometheus_conventions(spec) -> None:
    assert re.fullmatch(rf"sentineld_[a-z_]*({UNITS})", spec.name)
    assert spec.name.endswith("_total") == (spec.kind == "counter")
    assert spec.help.endswith(".")
    assert not set(spec.labels) & {"host", "instance", "job", "tensor", "layer", "address"}


def test_the_metrics_page_is_up_to_date() -> None:
    assert page_is_current("metrics.md", metrics_page()), "run `make docs`"
