# SPDX-License-Identifier: Apache-2.0
"""Runs Debian's Prometheus in a guest with the daemon, and sends it the dashboard's queries."""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

from tests.dashboard import expressions

from .guest import Guest
from .host import MachineError
from .training import metrics, wait

SHARE = "/usr/local/share/doc/sentineld"
PORT = 9090
PATIENCE_S = 900
"""Time limit until Prometheus's answers are as expected. On a busy host, an emulated guest is
slow."""
VARIABLES = {"$__rate_interval": "1m", "$session": ".*"}
"""Values for the variables in the dashboard's expressions."""
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


@contextlib.contextmanager
def prometheus(guest: Guest, interval_s: int = 20) -> Iterator[None]:
    """Run Debian's Prometheus in the guest during the block; it scrapes the daemon.

    interval_s: time between two scrapes, which is also the time limit of a scrape. On a busy host,
        a scrape in an emulated guest can take longer than the 5 s of the installed configuration.
    """
    installed, config = f"{SHARE}/prometheus/sentineld.yml", f"{SHARE}/prometheus/slow.yml"
    limits = rf"scrape_interval: {interval_s}s\n  scrape_timeout: {interval_s}s"
    guest.run(f"sed 's/scrape_interval: 5s/{limits}/' {installed} > {config}")
    guest.run(f"grep -q 'scrape_timeout: {interval_s}s' {config}")
    options = f"--config.file={config} --storage.tsdb.path=/tmp/prometheus"
    guest.run(
        "systemd-run --unit sentinel-prometheus"
        f" prometheus {options} --web.listen-address=127.0.0.1:{PORT}"
    )

    def ready() -> bool:
        with contextlib.suppress(MachineError):
            guest.http_get(PORT, "/-/ready")
            return True
        return False

    try:
        wait("Prometheus", ready, 240)
        yield
    finally:
        guest.run(f"systemctl stop sentinel-prometheus; rm -rf /tmp/prometheus {config}")


def get(guest: Guest, path: str) -> Any:
    """The data in Prometheus's response to a request to its API."""
    return json.loads(guest.http_get(PORT, f"/api/v1/{path}"))["data"]


def query(guest: Guest, expression: str) -> list[dict[str, Any]]:
    """The rows of Prometheus's answer to a query. Raises MachineError if Prometheus rejects it."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    rows: list[dict[str, Any]] = get(guest, f"query?query={urllib.parse.quote(expression)}")[
        "result"
    ]
    return rows


def check_metrics(guest: Guest) -> None:
    """Have promtool check the daemon's metrics."""
    guest.run("promtool check metrics", stdin=metrics(guest))


def installed_expressions(guest: Guest) -> list[str]:
    """The expressions of the dashboard that is installed in the guest."""
    return expressions(json.loads(guest.run(f"cat {SHARE}/grafana/sentineld.json").stdout))


def wait_for_data(guest: Guest, names: tuple[str, ...]) -> None:
    """Wait until every dashboard expression that uses one of these metrics has data."""
    waiting = [one for one in installed_expressions(guest) if any(name in one for name in names)]

    def answered() -> bool:
        waiting[:] = [expression for expression in waiting if not query(guest, expression)]
        print("no data yet:", waiting)
        return not waiting

    wait("data", answered, PATIENCE_S)
