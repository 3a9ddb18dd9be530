# SPDX-License-Identifier: Apache-2.0
"""The installed daemon under systemd, scraped by Debian's Prometheus with the installed files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .guest import Guest
from .prometheus import (
    ALWAYS_ANSWERED,
    SHARE,
    check_metrics,
    get,
    installed_expressions,
    prometheus,
    query,
    wait_for_data,
)
from .training import wait

pytestmark = pytest.mark.guest


@pytest.fixture(scope="module")
def scraped(daemon: Guest) -> Iterator[Guest]:
    """The guest with the daemon running and Prometheus scraping it."""
    with prometheus(daemon):
        yield daemon


def test_the_daemon_is_active_and_its_unit_is_sandboxed(scraped: Guest) -> None:
    assert scraped.run("systemctl is-active sentineld").stdout.strip() == "active"
    scraped.run("systemd-analyze security --threshold=29 sentineld", timeout=60)
    scraped.run("test $(stat -c %a:%U /dev/sentinel) = 600:root")


def test_promtool_accepts_the_metrics_and_the_config(scraped: Guest) -> None:
    check_metrics(scraped)
    for name in ("sentineld", "sentineld-fleet"):
        scraped.run(f"promtool check config {SHARE}/prometheus/{name}.yml")


def test_prometheus_scrapes_the_daemon(scraped: Guest) -> None:
    def up() -> bool:
        active = get(scraped, "targets")["activeTargets"]
        assert [each["labels"]["job"] for each in active] == ["sentineld"]
        print(active[0]["health"], active[0]["lastError"])
        return bool(active[0]["health"] == "up")

    wait("a scrape", up, 240)


def test_every_query_of_the_dashboard_succeeds(scraped: Guest) -> None:
    found = installed_expressions(scraped)
    assert len(found) >= 28
    for expression in found:
        query(scraped, expression)
    wait_for_data(scraped, ALWAYS_ANSWERED)


def test_alert_rules_evaluate_without_errors(scraped: Guest) -> None:
    def rules() -> Any:
        groups = get(scraped, "rules")["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else None

    found = wait("an evaluation", rules, 240)
    assert {rule["health"] for rule in found} == {"ok"}, found
    assert len(found) == 8
