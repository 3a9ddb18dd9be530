# SPDX-License-Identifier: Apache-2.0
"""bench-train's arithmetic: rows, the bound of each round, goals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.bench.training import figures

ROUNDS = 12


def policy(step_s: list[float], **changed: Any) -> dict[str, Any]:
    return {
        "note": "",
        "step_s": step_s,
        "waited_s": [0.0] * ROUNDS,
        "delayed_s": [0.5] * ROUNDS,
        "cpu_s": [1.0] * ROUNDS,
        "system_s": [0.1] * ROUNDS,
        "queued_s": [0.0] * ROUNDS,
        "faults": [100] * ROUNDS,
        "predicted_wait_s": 0.0,
        "predicted_birth_s": 0.0,
        "predicted_late_moves": 0.0,
        "daemon_s": [0.1] * ROUNDS,
        "span_s": [2.0] * ROUNDS,
        "owed_s": 0.5,
        "paid_s": 0.5,
        "model_s": 0.5,
        "moved_bytes": 1 << 20,
        "late_moves": 0,
        "diverged_steps": 0,
        "energy": {"joules_per_step": 10.0 * step_s[0], "source": "modelled"},
        "losses_equal": True,
        "predicted_s": float(np.median(step_s)),
        **changed,
    }


def raw(extra_s: float = 0.22, **ours: Any) -> dict[str, Any]:
    """Rounds on a machine that becomes slower; the bound is 0.2 s longer than the all-fast step."""
    pace = np.linspace(1.0, 1.5, ROUNDS)
    return {
        "tiers": "cxl",
        "bound_extra_s": 0.2,
        "policies": {
            "fast-only": policy(pace.tolist(), owed_s=0.0, paid_s=0.0),
            "slow-only": policy((pace + 0.5).tolist()),
            "sentinel": {"note": "infeasible as published"},
            "auto": policy((pace + extra_s).tolist(), owed_s=extra_s, paid_s=extra_s) | ours,
        },
    }


def holds(**ours: Any) -> dict[str, bool]:
    found = figures.summarise({"toy": raw(**ours)})
    json.dumps(found)
    return {name: goal["holds"] for name, goal in found["goals"].items()}


def test_rows_hold_the_measured_medians_and_ratios() -> None:
    fast, slow, sentinel, ours = figures.rows("toy", raw())
    assert fast["step_seconds"] == fast["fast_only_seconds"] == pytest.approx(1.25)
    assert fast["paid_over_owed"] is None
    assert slow["owed_over_model"] == 1
    assert sentinel["note"] == "infeasible as published"
    assert "step_seconds" not in sentinel
    assert ours["step_seconds"] == pytest.approx(1.47)
    assert ours["bound_seconds"] == pytest.approx(1.45)
    assert ours["ci95"][0] < 1.47 < ours["ci95"][1]
    # Each round has its own bound, so the machine's slowdown of 50 % does not widen the
    # interval.
    assert ours["over_bound"]["value"] == pytest.approx(1.47 / 1.45, abs=1e-3)
    assert ours["over_bound"]["high"] - ours["over_bound"]["low"] < 0.005
    assert ours["daemon_cpu_share"] == pytest.approx(0.05)
    assert (ours["joules"], ours["energy_source"]) == (12.2, "modelled")
    assert ours["energy_over_fast_only"] == pytest.approx(1.22)


def test_each_goal_fails_on_its_own_figure() -> None:
    assert all(holds().values())
    assert "auto_over_bound_worst" in holds()
    assert not holds(losses_equal=False)["unequal_losses"]
    assert not holds(diverged_steps=1)["diverged_steps"]
    assert not holds(paid_s=0.222)["injected_error_worst"]
    assert not holds(predicted_s=1.3)["auto_off_prediction_worst"]
    assert not holds(extra_s=0.4)["auto_over_bound_worst"]


def test_the_table_states_that_tiers_are_emulated() -> None:
    text = figures.table(figures.summarise({"toy": raw()}))
    assert "emulated" in text.splitlines()[0]
    assert "infeasible as published" in text


def test_a_step_is_broken_down_into_its_parts() -> None:
    waited, faulted = [0.02] * ROUNDS, [1100] * ROUNDS
    ours = {
        "waited_s": waited,
        "delayed_s": [0.1] * ROUNDS,
        "faults": faulted,
        "cpu_s": [1.1] * ROUNDS,
    }
    *_, auto = figures.rows("toy", raw(0.22, **ours))
    parts = auto["parts"]
    assert parts["delay_seconds"] == pytest.approx(0.1)
    assert parts["wait_seconds"] == pytest.approx(0.02)
    assert parts["own_extra_seconds"] == pytest.approx(0.1)
    assert parts["cpu_extra_seconds"] == pytest.approx(0.1)
    assert parts["page_faults"] == 1000
    assert parts["predicted_delay_seconds"] == pytest.approx(0.22)
    assert "late moves" in figures.table(figures.summarise({"toy": raw(0.22, **ours)}))
