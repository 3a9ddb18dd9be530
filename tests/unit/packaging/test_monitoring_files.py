# SPDX-License-Identifier: Apache-2.0
"""The dashboard and alert rules use only metrics and labels that the daemon exports."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from docs.dashboard import dashboard, fleet_dashboard
from docs.generate import page_is_current
from sentineld.service.metrics import METRICS, SCRAPE_DURATION
from tests.dashboard import expressions, panels

DOCS = Path(__file__).parents[3] / "docs"
BOARDS = {"sentineld": dashboard, "sentineld-fleet": fleet_dashboard}
RULES = {file.stem: file.read_text() for file in (DOCS / "prometheus").glob("*.rules.yml")}

LABELS = {spec.name: set(spec.labels) for spec in METRICS} | {SCRAPE_DURATION[0]: set()}
"""The labels of each metric of the daemon. Prometheus adds the label "instance"."""
LEVELS = {
    "instance_session": {"session", "training_job", "rank"},
    "training_job_rank": {"training_job", "rank"},
    "training_job": {"training_job"},
}
"""The labels of a recorded series by the first part of its name."""
RECORDED = {
    name: LEVELS[name.split(":")[0]]
    for text in RULES.values()
    for name in re.findall(r"- record: (\S+)", text)
}


def all_expressions() -> list[str]:
    """The expressions of the dashboards and of the rules."""
    found: list[str] = []
    for name in BOARDS:
        found += expressions(json.loads((DOCS / f"grafana/{name}.json").read_text()))
    for text in RULES.values():
        found += re.findall(r" expr: (?:\|\n)?((?:.|\n)*?)\n(?=\n| +for:)", text)
    return found


def test_expressions_are_found() -> None:
    assert len(all_expressions()) > 60
    assert len(RECORDED) == 12


@pytest.mark.parametrize("expression", all_expressions())
def test_an_expression_uses_existing_metrics_and_labels(expression: str) -> None:
    recorded = re.findall(r"\b\w+:[\w:]+", expression)
    assert set(recorded) <= set(RECORDED)
    exported = re.findall(r"(?<!:)\b(?:sentineld|process|up)_?\w*(?=[\s{\[)]|$)", expression)
    for name in exported:
        assert name in LABELS or name.startswith("process_") or name == "up", name
    names = [*recorded, *exported]
    assert names, expression
    labels = LABELS | RECORDED
    for name, matchers in re.findall(r"((?:\w+:)*sentineld_[\w:]+)\{([^}]*)\}", expression):
        used = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', matchers))
        assert used <= labels[name], (name, used)
    for grouping in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression):
        wanted = {label.strip() for label in grouping.split(",")} - {"instance", ""}
        known = set.union(*(labels.get(name, set()) for name in names))
        assert wanted <= known, (expression, wanted - known)


def test_every_metric_is_used_except_the_listed_ones() -> None:
    shown = " ".join(all_expressions())
    hidden = {name for name in LABELS if not re.search(rf"\b{name}\b", shown)}
    # No graph or alert uses the version, the preset, migration bandwidths, planning times, the
    # decisions on late promotions, the memory that is never paged out, or the number of
    # a session's processes.
    assert hidden == {
        "sentineld_build_info",
        "sentineld_emulated_tiers_info",
        "sentineld_late_promotion_boundaries",
        "sentineld_migration_bandwidth_bytes_per_second",
        "sentineld_plan_duration_seconds",
        "sentineld_planned_migration_bandwidth_bytes_per_second",
        "sentineld_processes",
        "sentineld_skipped_bytes",
    }


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_is_up_to_date(name: str) -> None:
    assert page_is_current(f"grafana/{name}.json", BOARDS[name]()), "run `make docs`"


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    board = json.loads((DOCS / f"grafana/{name}.json").read_text())
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
