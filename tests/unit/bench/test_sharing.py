# SPDX-License-Identifier: Apache-2.0
"""Divisions of a shared budget, compared with the best division, for curves made by hand."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sentineld.plan.division import Curve
from tests.bench import sharing
from tests.bench.sharing import best_sum, division_row, goals_of, main, possible_rows, report

MIB = 1 << 20
LINE = Curve((0, 64 * MIB), (2.0, 1.0))
CLIFF = Curve((0, 39 * MIB, 40 * MIB), (2.0, 2.0, 1.0))


def test_the_best_division_is_found_among_the_points() -> None:
    assert best_sum([LINE, CLIFF], 64 * MIB) == 3.0
    assert best_sum([LINE, CLIFF], 104 * MIB) == 2.0
    assert best_sum([Curve((2 * MIB,), (1.5,))], MIB) == math.inf


def test_a_row_compares_with_the_best_division_and_with_equal_shares() -> None:
    fine, peaks = {"line": LINE, "cliff": CLIFF}, {"line": 64 * MIB, "cliff": 64 * MIB}
    row = division_row(("line", "cliff"), 0.5, fine, peaks)
    assert row["size_bytes"] == 64 * MIB
    assert sum(row["shares_bytes"]) <= 64 * MIB
    assert row["equal_sum"] == 3.5
    assert row["sum"] < row["best_sum"] == 3.0
    row["simulated_sum"] = row["sum"]
    assert all(goals_of([row]).values())
    assert "line, cliff" in report([row])
    row["simulated_sum"] = 1.1 * row["best_sum"]
    assert list(goals_of([row]).values()) == [False, True, True]


def test_the_rows_without_a_possible_division_are_left_out() -> None:
    rows = [{"sum": total, "best_sum": best} for total, best in ((3, 3), (4, math.inf), (4, 2))]
    assert possible_rows(rows) == [{"sum": 4, "best_sum": 2}, {"sum": 3, "best_sum": 3}]


def test_one_model_cannot_share(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sharing", "--models", "lstm"])
    monkeypatch.setattr(sharing, "record_missing", pytest.fail)
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "error: --models: at least 2 models are needed" in capsys.readouterr().err


def test_budgets_that_allow_no_plan_are_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    step = SimpleNamespace(peak_bytes=64 * MIB)
    for name, value in {
        "record_missing": lambda folder, models: None,
        "step_of": lambda trace: (step, 1),
        "slowdown": lambda trace, budget_bytes: math.inf,
        "ProcessPoolExecutor": NoPool,
    }.items():
        monkeypatch.setattr(sharing, name, value)
    output = tmp_path / "sharing.json"
    monkeypatch.setattr(sys, "argv", ["sharing", "--models", "lstm", "gpt2", "-o", str(output)])
    with pytest.raises(SystemExit, match="2"):
        main()
    captured = capsys.readouterr()
    assert captured.err.startswith("error: every shared budget is too small")
    assert captured.err.count("\n") == 1
    assert not output.exists()


class NoPool:
    """Calls functions in this process, instead of a pool of processes."""

    def __init__(self, jobs: int) -> None:
        del jobs

    def __enter__(self) -> NoPool:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    map = staticmethod(map)
