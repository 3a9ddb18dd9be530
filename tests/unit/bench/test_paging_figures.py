# SPDX-License-Identifier: Apache-2.0
"""bench-paging's arithmetic: rows, the bound of each round, goals, the table."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sentineld.model.energy import CORE_W, WAITING_CORE_W
from tests.bench.paging import figures

ROUNDS = 5
PACE = np.linspace(1.0, 1.4, ROUNDS)
"""Seconds that a step takes in each round if all memory is RAM. The machine becomes slower from
round to round."""


def contestant(over_ram: float, **changed: Any) -> dict[str, Any]:
    turn = {
        "cpu_s": 1.0,
        "disk_bytes_read": 1e6,
        "disk_bytes_written": 2e6,
        "late_faults": 2.0,
        "peak_bytes": 900,
        "machine_joules": None,
    }
    return {
        "note": "",
        "limit_bytes": 1000,
        "turns": [{"step_s": over_ram * step_s} | turn for step_s in PACE],
        "losses_equal": True,
        **changed,
    }


def managed(over_ram: float, **changed: Any) -> dict[str, Any]:
    step_s = over_ram * float(np.median(PACE))
    more = {"moved_bytes": 1e6, "late_moves": 0.0, "diverged_steps": 0, "predicted_s": step_s}
    return contestant(over_ram, **more | changed)


def raw(bound_extra_s: float = 0.0, **changed: dict[str, Any]) -> dict[str, Any]:
    contestants = {
        "ram": contestant(1.0, limit_bytes=None),
        "swap": contestant(3.5),
        "zram": contestant(2.5),
        "saved-tensors": {"note": "not measured"},
        "auto": managed(1.05),
    }
    return {
        "bound_extra_s": bound_extra_s,
        "access_joules": 3.0,
        "contestants": contestants | changed,
    }


def holds(fraction: str = "0.4", extra_s: float = 0.0, **changed: dict[str, Any]) -> dict[str, Any]:
    found = figures.summarise({"toy": {fraction: raw(extra_s, **changed)}})
    json.dumps(found)
    return {name: goal["holds"] for name, goal in found["goals"].items()}


def test_rows() -> None:
    rows = {row["contestant"]: row for row in figures.rows("toy", 0.4, raw(0.12))}
    assert rows["saved-tensors"]["note"] == "not measured"
    ours = rows["auto"]
    assert ours["ram_step_seconds"] == pytest.approx(1.2)
    assert ours["bound_seconds"] == pytest.approx(1.32)
    # Each ratio is taken within one round, so the slowdown of the machine from round to round does
    # not widen the confidence interval.
    assert ours["over_ram"] == {"value": 1.05, "low": 1.05, "high": 1.05}
    assert rows["ram"]["limit_bytes"] is None
    assert rows["swap"]["disk_bytes_written"] == 2_000_000


def test_energy_is_modelled_from_cores_and_the_disk() -> None:
    turn = contestant(1.0)["turns"][-1] | {"step_s": 3.0}
    cores = 1.0 * CORE_W + 2.0 * WAITING_CORE_W
    disk = (1e6 * (304 + 20) + 2e6 * (20 + 462)) * 8e-12
    assert figures.joules(turn, 3.0) == pytest.approx(cores + 3.0 + disk)
    busy = turn | {"cpu_s": 4.0}  # more than step_s: the pager's threads use other cores
    assert figures.joules(busy, 3.0) == pytest.approx(4.0 * CORE_W + 3.0 + disk)
    found = figures.rows("toy", 0.4, raw())[0]
    assert found["energy_source"] == "modelled"
    assert found["energy_over_ram"]["value"] == 1.0


def test_energy_is_that_of_the_machine_with_rapl() -> None:
    def measured(over_ram: float, joules: float) -> dict[str, Any]:
        found = contestant(over_ram)
        found["turns"] = [turn | {"machine_joules": joules} for turn in found["turns"]]
        return found

    rows = figures.rows("toy", 0.4, raw(ram=measured(1.0, 20.0), swap=measured(3.5, 50.0)))
    assert (rows[1]["joules"], rows[1]["energy_source"]) == (50.0, "rapl")
    assert rows[1]["energy_over_ram"]["value"] == 2.5


def test_all_goals_hold() -> None:
    found = holds()
    assert len(found) == 11
    assert all(found.values())


@pytest.mark.parametrize(
    ("goal", "changed"),
    [
        ("rows_above_limit", {"auto": managed(1.05, limit_bytes=899)}),
        ("managed_not_measured", {"sentinel": {"note": "the training ended with signal 9"}}),
        ("unequal_losses", {"swap": contestant(3.5, losses_equal=False)}),
        ("auto_over_bound_at_40%", {"auto": managed(1.11)}),
        ("auto_over_ram_at_40%_where_bound_allows", {"auto": managed(1.09)}),
        ("late_faults_share", {"auto": managed(1.05, moved_bytes=4096.0 * 190)}),
        ("auto_off_prediction", {"auto": managed(1.05, predicted_s=1.05 * 1.2 / 1.08)}),
        ("swap_over_ram_least", {"swap": contestant(1.9)}),
        ("swap_over_ram_mean", {"swap": contestant(2.9)}),
        ("zram_over_ram_least", {"zram": contestant(1.4)}),
        ("zram_over_ram_mean", {"zram": contestant(1.9)}),
    ],
)
def test_a_goal_that_fails(goal: str, changed: dict[str, Any]) -> None:
    assert not holds(**changed)[goal]


def test_ram_is_no_goal_where_the_bound_does_not_allow_it() -> None:
    """The median step in RAM takes 1.2 s (see PACE), so the bound is 1.2 s + 0.6 s = 1.8 s. A step
    that takes 1.6 times as long as in RAM takes 1.07 times the bound."""
    found = holds(extra_s=0.6, auto=managed(1.6))
    assert "auto_over_ram_at_40%_where_bound_allows" not in found
    assert found["auto_over_bound_at_40%"]


def test_goals_at_other_fractions() -> None:
    found = holds("0.2", auto=managed(1.14))
    assert found["auto_over_bound_at_20%"]
    assert not any("40%" in name or "swap" in name for name in found)


def test_the_table_has_a_line_per_row() -> None:
    text = figures.text(figures.summarise({"toy": {"0.4": raw()}}))
    lines = text.splitlines()
    assert sum(line.startswith("| toy") for line in lines) == 5
    assert sum(line.startswith("holds") for line in lines) == 11


def test_a_rival_must_not_be_faster_than_auto() -> None:
    assert "rival_over_auto_least" not in holds()
    assert holds(vdnn=managed(1.2), lms=managed(1.06))["rival_over_auto_least"]
    assert not holds(vdnn=managed(1.2), lms=managed(1.04))["rival_over_auto_least"]
    # `managed_not_measured` does not count rivals, which may have no plan for a budget.
    unable = {"note": "no plan", "limit_bytes": 1000}
    assert holds(vdnn=unable)["managed_not_measured"]
    found = figures.summarise({"toy": {"0.4": raw(vdnn=managed(1.2))}})
    assert next(row for row in found["rows"] if row["contestant"] == "vdnn")["late_moves"] == 0
