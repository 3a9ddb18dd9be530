# SPDX-License-Identifier: Apache-2.0
"""The dashboard and alert rules use only metrics and labels that the daemon exports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.dashboard import dashboard
from docs.generate import page_is_current
from sentineld.service.metrics import METRICS, SCRAPE_DURATION
from tests.dashboard import expressions, panels

DOCS = Path(__file__).parents[3] / "docs"

LABELS = {spec.name: set(spec.labels) for spec in METRICS} | {SCRAPE_DURATION[0]: set()}


def all_expressions() -> list[str]:
    """The expressions of the dashboard and of the alert rules."""
    found = expressions(json.loads((DOCS / "grafana/sentineld.json").read_text()))
    rules = (DOCS / "prometheus/sentineld.rules.yml").read_text()
    return found + re.findall(r"expr: (?:\|\n)?((?:.|\n)*?)\n +for:", rules)


def test_expressions_are_found() -> None:
    assert len(all_expressions()) > 30


@pytest.mark.parametrize("expression", all_expressions())
def test_an_expression_uses_existing_metrics_and_labels(expression: str) -> None:
    names = re.findall(r"\b(?:sentineld|process|up)_?\w*(?=[\s{\[)]|$)", expression)
    assert names, expression
    for name in names:
        assert name in LABELS or name.startswith("process_") or name == "up", name
    for name, matchers in re.findall(r"\b(sentineld_\w+)\{([^}]*)\}", expression):
        used = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers))
        assert used <= LABELS[name], (name, used)
    for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
        wanted = {label.strip() for label in grouping.split(",")}
        known = set.union(*(LABELS.get(name, set()) for name in names))
        assert wanted <= known, (expression, wanted - known)


def test_every_metric_is_used_except_the_listed_ones() -> None:
    shown = " ".join(all_expressions())
    hidden = {name for name in LABELS if not re.search(rf"\b{name}\b", shown)}
    # No graph or alert uses the version, the preset, migration bandwidths, planning times, the
    # decisions on late promotions, the memory that is never paged out, or the numbers of
    # boundaries, of a job's ranks and of a session's processes.
    assert hidden == {
        "sentineld_build_info",
        "sentineld_emulated_tiers_info",
        "sentineld_job_ranks",
        "sentineld_late_promotion_boundaries",
        "sentineld_migration_bandwidth_bytes_per_second",
        "sentineld_plan_duration_seconds",
        "sentineld_planned_migration_bandwidth_bytes_per_second",
        "sentineld_processes",
        "sentineld_skipped_bytes",
        "sentineld_step_boundaries",
    }


def test_the_dashboard_is_up_to_date() -> None:
    assert page_is_current("grafana/sentineld.json", dashboard()), "run `make docs`"


def test_panels_do_not_overlap() -> None:
    board = json.loads((DOCS / "grafana/sentineld.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in panels(board):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
