# SPDX-License-Identifier: Apache-2.0
"""The exit status of a benchmark, and its earlier results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.results import earlier_models, exit_status

HOLDS, FAILS = {"goal": {"holds": True}}, {"goal": {"holds": False}}


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        ({"goals": HOLDS}, 0),
        ({"goals": HOLDS, "rows": [{"step_seconds": 1.0}, {"note": ""}]}, 0),
        ({"goals": FAILS, "rows": [{"step_seconds": 1.0}]}, 1),
        ({"goals": HOLDS, "rows": [{"note": "the plan was not entered"}]}, 2),
        ({"goals": FAILS, "rows": [{"note": "the plan was not entered"}]}, 2),
    ],
)
def test_a_row_that_was_not_measured_is_reported(summary: dict[str, object], status: int) -> None:
    assert exit_status(summary) == status


def test_earlier_results_are_used_with_the_same_settings_only(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    assert earlier_models(output, {}) == {}
    output.write_text(json.dumps({"settings": {"rounds": 2}, "raw": {"toy": 1}}))
    assert earlier_models(output, {"rounds": 2}) == {"toy": 1}
    with pytest.raises(RuntimeError, match="other settings"):
        earlier_models(output, {"rounds": 3})


def test_a_file_without_results_is_named(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    output.touch()
    with pytest.raises(RuntimeError, match=r"bench\.json has no results: Expecting value"):
        earlier_models(output, {})
