# SPDX-License-Identifier: Apache-2.0
"""The exit status of a benchmark."""

from __future__ import annotations

import pytest

from tests.bench.results import exit_status

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
