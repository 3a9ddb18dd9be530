# SPDX-License-Identifier: Apache-2.0
"""bench-policies' tables and its claims about `auto`, from hand-written rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sentineld.policies.registry import names
from sentineld.profile.trace_file import save_trace
from tests.bench import policies
from tests.bench.policy_figures import (
    Row,
    better_than_ours,
    by_policy,
    energy_ratio,
    failures,
    geometric_mean,
    policies_table,
    verdicts,
)
from tests.bench.policy_plots import draw
from tests.unit.traces import recorded
from tests.unit.trainer import MIB
from tests.unit.workloads import Network


def row(policy: str, step: float | None, trace: str = "bert", **more: object) -> Row:
    found: Row = {
        "trace": trace,
        "tiers": "cxl",
        "fast_fraction": 0.2,
        "policy": policy,
        "kind": "software",
        "step_seconds": step,
        "bound_seconds": 1.1,
        "fast_only_seconds": 1.0,
        "slow_only_seconds": 2.0,
        "plan_seconds": None if step is None else 1.5,
        "bytes_promoted": 0,
        "bytes_demoted": 0,
        "modelled_joules": None if step is None else 9 * step,
        "fast_only_modelled_joules": 10.0,
        "note": "" if step is not None else "infeasible as published: too little",
    }
    return found | more


def test_geometric_means_skip_unknown_values() -> None:
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([None]) is None


def test_energy_is_relative_to_the_all_fast_step() -> None:
    assert energy_ratio(row("a", 1.3)) == pytest.approx(1.17)
    assert energy_ratio(row("a", None)) is None
    earlier = row("a", 1.3)
    del earlier["modelled_joules"]
    assert energy_ratio(earlier) is None


def test_policies_with_failed_cells_come_last() -> None:
    rows = [row("a", 1.3), row("b", None), row("c", 1.2), row("b", 1.1, "gpt2")]
    assert list(by_policy(rows)) == ["c", "a", "b"]
    assert failures(rows) == ["b: 1 of 2 cells failed, e.g.: infeasible as published: too little"]


def test_the_table_has_a_line_per_policy_and_the_bound() -> None:
    rows = [row("a", 1.3), row("b", None), row("memory", 1.5, kind="hardware")]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in
             policies_table(rows).splitlines()]  # fmt: skip
    assert lines[2] == ["a", "1.300", "1.300", "1.300", "1.170", "1.182", "1/1", "1.5"]
    assert lines[3] == ["memory (hardware)", "1.500", "1.500", "1.500", "1.350", "", "1/1", "1.5"]
    assert lines[4] == ["b", "-", "-", "-", "-", "-", "0/1", "-"]
    assert lines[5][:2] == ["the bound", "1.100"]


def test_cells_in_which_auto_is_beaten_are_reported() -> None:
    rows = [
        row("auto", 1.2),
        row("close", 1.1995),  # so close to auto that it counts as a tie
        row("better", 1.15),
        row("best", 1.14),
        row("fast-only", 1.0),
        row("memory-mode", 1.0, kind="hardware"),
        row("auto", 1.12, "gpt2"),
        row("worse", 1.3, "gpt2"),
        row("failed", None, "gpt2"),
    ]
    assert better_than_ours(rows) == {("bert", "cxl", 0.2): ("best", pytest.approx(0.05))}
    lines = verdicts(rows)
    assert "holds: geometric mean over the bound: 1.0539" not in lines
    assert lines[0].startswith("DOES NOT HOLD: geometric mean over the bound: 1.05")
    assert "holds: worst cell over the bound: 1.0909 (bert, cxl, 20%)" in lines
    assert "  bert, cxl, 20%: best by 5.00%" in lines
    assert "holds: longest planning: 1.50 s" in lines


def test_without_auto_there_are_no_claims() -> None:
    assert verdicts([row("a", 1.2)]) == []


def test_a_cell_of_every_policy_is_written_and_drawn(tmp_path: Path) -> None:
    network = Network(blocks=2, weight_bytes=MIB // 4, activation_bytes=MIB // 4, bytes_per_s=4e9)
    trace = tmp_path / "bert.npz"
    save_trace(recorded(network), trace)
    rows = policies.cell_rows(trace, "cxl", 0.2, names(), steps_max=12)
    assert [one["policy"] for one in rows] == names()
    for one in rows:
        if one["step_seconds"] is None:
            assert "infeasible" in one["note"], one
        elif one["kind"] == "software" and one["policy"] != "fast-only":
            assert one["bound_seconds"] <= one["step_seconds"] * (1 + 1e-6), one
    file = tmp_path / "policies.json"
    policies.write_rows(list(rows), file)
    kept = json.loads(file.read_text())["rows"]
    assert kept == sorted(rows, key=lambda one: str(one["policy"]))
    assert policies.earlier_rows(file, ["static"]) == [
        one for one in kept if one["policy"] == "static"
    ]
    assert policies.earlier_rows(file, ["static", "another"]) == []
    pictures = draw(rows, lambda name: policies.step_of(trace), tmp_path)
    assert len(pictures) == 6
    assert all(picture.stat().st_size > 1000 for picture in pictures)


def test_a_crashing_policy_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network(blocks=2, weight_bytes=MIB // 4, activation_bytes=MIB // 4, bytes_per_s=4e9)
    trace = tmp_path / "gpt2.npz"
    save_trace(recorded(network), trace)

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr("sentineld.policies.rivals.static.Static.plan", broken)
    rows = policies.cell_rows(trace, "cxl", 0.2, ["static", "first-touch"])
    assert rows[0]["note"] == "error: ZeroDivisionError: injected"
    assert rows[0]["step_seconds"] is None
    assert rows[1]["step_seconds"] > 0
