# SPDX-License-Identifier: Apache-2.0
"""Runs Debian's Prometheus in a guest with the daemon, and sends it the dashboard's queries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .guest import TREE, Guest
from .training import METRICS, wait

SHARE = "/usr/local/share/doc/sentineld"
PROMETHEUS = "http://127.0.0.1:9090/api/v1"
ALWAYS_ANSWERED = (
    "sentineld_sessions",
    "sentineld_feature_available",
    "sentineld_tier_capacity_bytes",
    "sentineld_scrape_duration_seconds",
    "sentineld_heartbeat_timestamp_seconds",
    "process_resident_memory_bytes",
)
WHILE_MANAGED = (
    "sentineld_charged_bytes",
    "sentineld_budget_bytes",
    "sentineld_peak_bytes",
    "sentineld_resident_bytes",
    "sentineld_steps_total",
    "sentineld_samples_total",
    "sentineld_records_lost_total",
    "sentineld_barrier_wait_seconds_total",
    "sentineld_fast_share_ratio",
    "sentineld_migrated_bytes_total",
)


def get(guest: Guest, url: str) -> Any:
    """The JSON at a URL in the guest."""
    return json.loads(guest.run(["curl", "-fsS", url]).stdout)


@pytest.fixture(scope="module")
def prometheus(daemon: Guest) -> Iterator[Guest]:
    """The guest with the daemon running and Debian's Prometheus scraping it."""
    options = f"--config.file={SHARE}/prometheus/sentineld.yml --storage.tsdb.path=/tmp/prometheus"
    daemon.run(
        "systemd-run --unit sentinel-prometheus"
        f" prometheus {options} --web.listen-address=127.0.0.1:9090"
    )
    ready = "curl -fs http://127.0.0.1:9090/-/ready"
    wait("Prometheus", lambda: daemon.run(ready, check=False).returncode == 0, 120)
    yield daemon
    daemon.run("systemctl stop sentinel-prometheus; rm -rf /tmp/prometheus")


def check_metrics(guest: Guest) -> None:
    """Have promtool check the daemon's metrics."""
    # In a busy guest, computing the page can exceed the server's time limit.
    scrape = f"curl -fsS {METRICS} > /tmp/metrics"
    wait("a scrape", lambda: guest.run(scrape, check=False).returncode == 0, 240)
    guest.run("promtool check metrics < /tmp/metrics")


def answers(guest: Guest) -> dict[str, Any]:
    """Each expression of the dashboard -> Prometheus's response."""
    command = f"python3 {TREE}/tests/vm/promql.py {SHARE}/grafana/sentineld.json"
    return dict(json.loads(guest.run(command, timeout=300).stdout))


def unanswered(guest: Guest, metrics: tuple[str, ...]) -> list[str]:
    """The dashboard's expressions that use one of the metrics and for which Prometheus has no
    data."""
    return [
        expression
        for expression, answer in answers(guest).items()
        if any(metric in expression for metric in metrics) and not answer["data"]["result"]
    ]
