# SPDX-License-Identifier: Apache-2.0
"""Divisions of a shared budget, compared with the best division, for curves made by hand."""

from __future__ import annotations

import math

from sentineld.plan.division import Curve
from tests.bench.sharing import best_sum, division_row, goals_of, report

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
