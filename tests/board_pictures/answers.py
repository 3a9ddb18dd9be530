# SPDX-License-Identifier: Apache-2.0
"""Sends the queries of a dashboard to Prometheus, as Grafana does, and keeps the answers in a
file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.dashboard import panels

VARIABLES = {"$__rate_interval": "1m", "$session": ".*", "$training_job": ".*"}
"""Values of the variables in the expressions: the interval that Grafana uses for its default scrape
interval of 15 s, and patterns that select all sessions and jobs."""

Series = list[dict[str, Any]]


@dataclass(frozen=True)
class Answers:
    """Prometheus's answers to all queries of a dashboard."""

    source: str  # line below the title: the training and its machine
    begin_s: float  # Unix times of the first and the last value
    end_s: float
    step_s: float
    series: dict[str, Series]
    """The series of the answer to each expression; a key is the expression as in the dashboard. In
    a series, "values" has a pair [time, value as text] for each of the query's times that has a
    value; the times are step_s apart."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Answers:
        return cls(**json.loads(path.read_text()))


def ask(
    board: dict[str, Any],
    get: Callable[[str], Any],
    source: str,
    begin_s: float,
    end_s: float,
    step_s: float = 5.0,
) -> Answers:
    """Send all queries of a dashboard for this period.

    get: returns the data of Prometheus's response to a request for a path below /api/v1/.
    """
    period = {"start": begin_s, "end": end_s, "step": step_s}
    series: dict[str, Series] = {}
    for panel in panels(board):
        for target in panel.get("targets") or []:
            expression = query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            if target.get("instant"):
                data = get("query?" + urlencode({"query": query, "time": end_s}))
                rows = [{**row, "values": [row.pop("value")]} for row in data["result"]]
            else:
                rows = get("query_range?" + urlencode({"query": query, **period}))["result"]
            series[expression] = rows
    return Answers(source, begin_s, end_s, step_s, series)


def now_s(get: Callable[[str], Any]) -> float:
    """The time of Prometheus's clock. get: see ask()."""
    _, value = get("query?query=time()")["result"]
    return float(value)


def last_scrape_s(get: Callable[[str], Any]) -> float:
    """The time of the last successful scrape. get: see ask()."""
    query = "max(max_over_time(timestamp(up == 1)[10m:5s]))"
    (row,) = get("query?" + urlencode({"query": query}))["result"]
    return float(row["value"][1])
