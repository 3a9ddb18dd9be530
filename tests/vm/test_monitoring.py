# SPDX-License-Identifier: Apache-2.0
"""The installed daemon under systemd, scraped by Debian's Prometheus with the shipped files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .guest import TREE, Guest
from .training import Training, wait

pytestmark = pytest.mark.guest

SHARE = "/usr/local/share/doc/sentineld"
METRICS = "http://127.0.0.1:9464/metrics"
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


@pytest.fixture
def training(prometheus: Guest) -> Iterator[int]:
    """The pid of a managed and metered training process."""
    started = Training(prometheus)
    prometheus.run(f"sentinelctl attach {started.pid} --fast 20%")
    wait("managed", lambda: started.in_state("managed"), 300)
    prometheus.run(f"sentinelctl meter {started.pid} --steps 1", timeout=300)
    yield started.pid
    started.process.send_remote("KILL")
    started.process.wait(timeout=60)


def answers(guest: Guest) -> dict[str, Any]:
    command = f"python3 {TREE}/tests/vm/promql.py {SHARE}/grafana/sentineld.json"
    return dict(json.loads(guest.run(command, timeout=300).stdout))


def unanswered(guest: Guest, metrics: tuple[str, ...]) -> list[str]:
    """Expressions on these metrics to which Prometheus has no data."""
    return [
        expression
        for expression, answer in answers(guest).items()
        if any(metric in expression for metric in metrics) and not answer["data"]["result"]
    ]


def test_the_daemon_is_active_and_its_unit_tight(prometheus: Guest) -> None:
    assert prometheus.run("systemctl is-active sentineld").stdout.strip() == "active"
    prometheus.run("systemd-analyze security --threshold=35 sentineld", timeout=60)
    prometheus.run("test $(stat -c %G /dev/sentinel) = sentineld")


def test_promtool_finds_no_fault_with_the_metrics(prometheus: Guest) -> None:
    prometheus.run(f"set -o pipefail; curl -fsS {METRICS} | promtool check metrics")
    prometheus.run(f"promtool check config {SHARE}/prometheus/sentineld.yml")


def test_prometheus_has_the_target_up(prometheus: Guest) -> None:
    def target() -> Any:
        active = get(prometheus, f"{PROMETHEUS}/targets")["data"]["activeTargets"]
        assert [each["labels"]["job"] for each in active] == ["sentineld"]
        return active[0] if active[0]["health"] != "unknown" else None

    scraped = wait("a scrape", target, 60)
    assert scraped["health"] == "up", scraped["lastError"]


def test_every_panel_s_query_is_answered(prometheus: Guest) -> None:
    found = answers(prometheus)
    assert len(found) >= 28
    failed = {query: answer for query, answer in found.items() if answer["status"] != "success"}
    assert not failed
    wait("answers", lambda: not unanswered(prometheus, ALWAYS_ANSWERED), 60)


def test_alert_rules_evaluate(prometheus: Guest) -> None:
    def rules() -> Any:
        groups = get(prometheus, f"{PROMETHEUS}/rules")["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else None

    found = wait("an evaluation", rules, 60)
    assert {rule["health"] for rule in found} == {"ok"}, found
    assert len(found) == 8


@pytest.mark.timeout(1800)  # a slow machine's guest takes minutes from hello to managed
def test_a_managed_session_is_seen(prometheus: Guest, training: int) -> None:
    wait("data", lambda: not unanswered(prometheus, WHILE_MANAGED), 120)
    query = "sentineld_session_info * on (session) group_left () sentineld_charged_bytes"
    answer = prometheus.run(
        ["curl", "-fsSG", f"{PROMETHEUS}/query", "--data-urlencode", f"query={query}"]
    )
    rows = json.loads(answer.stdout)["data"]["result"]
    (row,) = [row for row in rows if row["metric"]["pid"] == str(training)]
    assert row["metric"]["state"] == "managed"
    assert row["metric"]["policy"] == "sentinel"
    assert float(row["value"][1]) > 0
    prometheus.run(f"set -o pipefail; curl -fsS {METRICS} | promtool check metrics")


def test_a_session_s_series_end_with_it(prometheus: Guest) -> None:
    def gone() -> bool:
        return "sentineld_session_info{" not in prometheus.run(["curl", "-fsS", METRICS]).stdout

    wait("the last session's end", gone, 60)
