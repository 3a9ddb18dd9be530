# SPDX-License-Identifier: Apache-2.0
"""The installed daemon under systemd, scraped by Debian's Prometheus with the installed files."""

from __future__ import annotations

from typing import Any

import pytest

from .guest import Guest
from .prometheus import ALWAYS_ANSWERED, PROMETHEUS, SHARE, answers, check_metrics, get, unanswered
from .training import wait

pytestmark = pytest.mark.guest


def test_the_daemon_is_active_and_its_unit_is_sandboxed(prometheus: Guest) -> None:
    assert prometheus.run("systemctl is-active sentineld").stdout.strip() == "active"
    prometheus.run("systemd-analyze security --threshold=29 sentineld", timeout=60)
    prometheus.run("test $(stat -c %a:%U /dev/sentinel) = 600:root")


def test_promtool_accepts_the_metrics_and_the_config(prometheus: Guest) -> None:
    check_metrics(prometheus)
    prometheus.run(f"promtool check config {SHARE}/prometheus/sentineld.yml")


def test_prometheus_scrapes_the_daemon(prometheus: Guest) -> None:
    def up() -> bool:
        active = get(prometheus, f"{PROMETHEUS}/targets")["data"]["activeTargets"]
        assert [each["labels"]["job"] for each in active] == ["sentineld"]
        print(active[0]["health"], active[0]["lastError"])
        return bool(active[0]["health"] == "up")

    wait("a scrape", up, 240)


def test_every_query_of_the_dashboard_succeeds(prometheus: Guest) -> None:
    found = answers(prometheus)
    assert len(found) >= 28
    failed = {query: answer for query, answer in found.items() if answer["status"] != "success"}
    assert not failed
    wait("answers", lambda: not unanswered(prometheus, ALWAYS_ANSWERED), 240)


def test_alert_rules_evaluate_without_errors(prometheus: Guest) -> None:
    def rules() -> Any:
        groups = get(prometheus, f"{PROMETHEUS}/rules")["data"]["groups"]
        found = [rule for group in groups for rule in group["rules"]]
        return found if found and all(rule["health"] != "unknown" for rule in found) else None

    found = wait("an evaluation", rules, 240)
    assert {rule["health"] for rule in found} == {"ok"}, found
    assert len(found) == 8
