# SPDX-License-Identifier: Apache-2.0
"""bench-shim's arithmetic: medians over pairs of steps, geometric means over models, goals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.bench.shim import figures

MODES = ("plain", "plain-again", "tcmalloc", "dormant", "recording", "replay")


def raw(**over_plain: float) -> dict[str, Any]:
    """Twenty noisy rounds on a machine that becomes steadily slower."""
    noise = np.random.default_rng(2).normal(1.0, 0.002, (len(MODES), 20))
    pace = np.linspace(1.0, 2.0, 20)
    cpu = {
        mode: (over_plain.get(mode.replace("-", "_"), 1.0) * pace * noise[at]).tolist()
        for at, mode in enumerate(MODES)
    }
    return {
        "cpu_s": cpu,
        "minor_faults": {mode: [100] * 20 for mode in MODES},
        "max_rss_bytes": dict.fromkeys(MODES, 1 << 30),
        "losses_equal": dict.fromkeys(MODES, True),
        "replay": {"planned_share": 1.0, "outside_share": 0.002, "diverged_steps": 0},
        "grouped": {
            "resident_over_peak": 1.02,
            "planned_share": 1.0,
            "charged_over_budget": 0.99,
            "diverged_steps": 0,
            "losses_equal": True,
        },
    }


def goals(**models: dict[str, Any]) -> dict[str, bool]:
    found = figures.summarise(models)
    json.dumps(found)
    return {name: goal["holds"] for name, goal in found["goals"].items()}


def test_a_machines_drift_cancels_out_in_pairs() -> None:
    ratio = figures.of_pairs(raw(replay=0.9)["cpu_s"]["replay"], raw()["cpu_s"]["plain"])
    assert ratio.low <= 0.9 <= ratio.high
    assert ratio.high - ratio.low < 0.01


def test_the_mean_over_models_is_geometric() -> None:
    ratio = figures.of_models({"a": [2.0] * 4, "b": [0.5] * 4}, {"a": [1.0] * 4, "b": [1.0] * 4})
    assert ratio == pytest.approx((1.0, 1.0, 1.0))


def test_the_glibc_baseline_is_the_mean_of_both_plain_processes() -> None:
    found = figures.summarise({"one": raw(plain=1.1, replay=0.9)})
    assert found["geomean"]["plain_over_plain"] == pytest.approx(1 / 1.1, abs=0.01)
    assert found["geomean"]["replay_over_plain"] == pytest.approx(0.9 / 1.05, abs=0.01)
    over_plain = {row["mode"]: row["over_plain"]["value"] for row in found["rows"][:2]}
    assert over_plain["plain"] == pytest.approx(1.1 / 1.05, abs=0.01)
    assert over_plain["plain-again"] == pytest.approx(1 / 1.05, abs=0.01)


def test_all_goals_hold_for_good_figures() -> None:
    good = raw(replay=0.9, tcmalloc=0.93)
    assert all(goals(one=good, two=good).values())


@pytest.mark.parametrize(
    ("goal", "change"),
    [
        ("plain_over_plain", {"plain_again": 1.02}),
        ("dormant_over_plain", {"dormant": 1.02}),
        ("recording_over_plain", {"recording": 1.05}),
        ("replay_over_plain", {"replay": 0.97, "tcmalloc": 0.98}),
        ("replay_over_tcmalloc", {"tcmalloc": 0.8}),
    ],
)
def test_a_mode_that_costs_too_much_fails_its_goal(goal: str, change: dict[str, float]) -> None:
    held = goals(one=raw(**({"replay": 0.9, "tcmalloc": 0.93} | change)))
    assert [name for name, holds in held.items() if not holds] == [goal]


def test_one_bad_model_fails_only_the_worst_case_goals() -> None:
    good, large = raw(replay=0.9, tcmalloc=0.93), raw(replay=0.9, tcmalloc=0.93)
    large["grouped"]["resident_over_peak"] = 1.11
    large["max_rss_bytes"]["replay"] = int(1.2 * (1 << 30))
    large["losses_equal"]["replay"] = False
    large["replay"]["planned_share"] = 0.99
    large["grouped"] |= {"charged_over_budget": 1.01, "diverged_steps": 1}
    held = goals(a=good, b=good, c=good, d=large)
    assert {name for name, holds in held.items() if not holds} == {
        "arena_over_peak_worst",
        "max_rss_over_plain_worst",
        "unequal_losses",
        "planned_share_least",
        "charged_over_budget_worst",
        "diverged_steps",
    }


def test_the_two_tier_run_also_counts_for_planned_share_and_losses() -> None:
    good, bad = raw(replay=0.9, tcmalloc=0.93), raw(replay=0.9, tcmalloc=0.93)
    bad["grouped"] |= {"planned_share": 0.999, "losses_equal": False}
    held = goals(a=good, b=bad)
    assert {name for name, holds in held.items() if not holds} == {
        "planned_share_least",
        "unequal_losses",
    }


def test_more_pairs_are_needed_until_both_plain_modes_agree() -> None:
    assert figures.enough_pairs(raw()["cpu_s"])
    assert not figures.enough_pairs(raw(plain_again=1.02)["cpu_s"])
    assert not figures.enough_pairs(raw(plain_again=0.98)["cpu_s"])


def test_tables_list_every_model_and_mode() -> None:
    text = figures.tables(figures.summarise({"resnet50": raw()}))
    for word in ("resnet50", *MODES, "FAILS", "holds", "0.200%"):
        assert word in text
