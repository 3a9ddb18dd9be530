# SPDX-License-Identifier: Apache-2.0
"""The dashboards' pictures: queries, units and drawing, with made-up answers of Prometheus."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image

from tests.board_pictures import units
from tests.board_pictures.answers import Answers, ask
from tests.board_pictures.draw import draw
from tests.dashboard import expressions

GRAFANA = Path(__file__).parents[3] / "docs/grafana"


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("short", 0.0, "0"),
        ("short", 1234.0, "1.23 K"),
        ("bytes", 1023.0, "1023 B"),
        ("bytes", 3 << 20, "3 MiB"),
        ("Bps", 3e6, "3 MB/s"),
        ("percentunit", 0.125, "12.5 %"),
        ("percentunit", -0.2, "-20 %"),
        ("s", 2e-5, "20 µs"),
        ("s", 0.0205, "20.5 ms"),
        ("s", 90.0, "90 s"),
        ("joule", 0.5, "500 mJ"),
        ("watt", 1000.0, "1 kW"),
    ],
)
def test_values_have_their_unit(unit: str, value: float, text: str) -> None:
    assert units.text(unit, value) == text


def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GRAFANA / f"{name}.json").read_text())
    return found


class Prometheus:
    """Answers each query with two series."""

    def __init__(self) -> None:
        self.queries: list[tuple[str, dict[str, list[str]]]] = []

    def get(self, path: str) -> Any:
        parts = urlsplit(path)
        self.queries.append((parts.path, parse_qs(parts.query)))
        rows: list[dict[str, Any]] = []
        for rank in "01":
            labels = {"training_job": "bert-7", "rank": rank}
            if parts.path == "query":
                rows.append({"metric": labels, "value": [1060.0, "0.25"]})
            else:
                values = [[1000.0, "0"], [1005.0, "1.5"], [1030.0, "NaN"], [1060.0, "2"]]
                rows.append({"metric": labels, "values": values})
        return {"result": rows}


def test_queries_have_no_variables_and_the_dashboards_period() -> None:
    fleet, prometheus = board("sentineld-fleet"), Prometheus()
    answers = ask(fleet, prometheus.get, "a test", 1000.0, 1060.0)
    assert answers.series.keys() == set(expressions(fleet))
    for path, options in prometheus.queries:
        assert "$" not in options["query"][0]
        if path == "query":
            assert options["time"] == ["1060.0"]
            assert options["query"][0].startswith("topk(")
        else:
            assert (options["start"], options["end"]) == (["1000.0"], ["1060.0"])
    assert {path for path, _ in prometheus.queries} == {"query", "query_range"}


def test_answers_are_kept_in_a_file_and_drawn(tmp_path: Path) -> None:
    fleet = board("sentineld-fleet")
    answers = ask(fleet, Prometheus().get, "a test", 1000.0, 1060.0)
    first, *_ = answers.series
    answers.series[first] = []  # "No data"
    answers.save(tmp_path / "answers.json")
    assert Answers.load(tmp_path / "answers.json") == answers
    draw(fleet, answers, tmp_path / "fleet.png")
    with Image.open(tmp_path / "fleet.png") as picture:
        assert picture.width > picture.height > 500
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10
