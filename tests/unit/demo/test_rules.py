# SPDX-License-Identifier: Apache-2.0
"""The rules of the demo's second part: a rule fails if a run breaks it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.demo import report, rules

MIB = 1 << 20


def step(share: float = 0.95, charged: int = 40 * MIB, moved: int = 300 * MIB) -> dict[str, Any]:
    return {
        "accesses": 1000,
        "fast_accesses": round(1000 * share),
        "fast_share": share,
        "charged_bytes_max": charged,
        "moved_bytes": moved,
        # 40960 pages touched once + 12288 pages touched four times = 53248 pages = 208 MiB
        "page_touches": [0, 40960, 0, 0, 12288],
        "stretches": [],
    }


def run(policy: str, share: float, steps: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy,
        "fast_share": share,
        "moved_bytes": 0,
        "peak_fast_bytes": 42 * MIB,
        "step_seconds": 6.0,
        "losses": ["0x1p+1", "0x1p+0"],
        "metered_steps": [step(share) for _ in range(steps)],
        **more,
    }


@pytest.fixture
def good() -> dict[str, Any]:
    runs = [
        run("all-fast", 1.0),
        run("all-slow", 0.0),
        run("first-touch", 0.2),
        run("kernel tiering", 0.3),
        run("sentineld", 0.95, steps=4, plan={"bound": {"fast_share": 0.97}}),
    ]
    done = {
        "peak_bytes": 215 * MIB,
        "budget_bytes": 43 * MIB,
        "reserve_bytes": MIB,
        "unmanaged_losses": ["0x1p+1", "0x1p+0", "0x1p-1"],
    }
    counts = {"sentineld": {"tensor_fast_share": 0.9, "machine_fast_share": 0.8}}
    return report.assemble(runs, counts, done, machine="a test")


def failing(result: dict[str, Any]) -> list[str]:
    return [verdict.rule for verdict in rules.check(result) if not verdict.holds]


def sentineld(result: dict[str, Any]) -> dict[str, Any]:
    found = rules.run_of(result, "sentineld")
    assert found is not None
    return found


def test_a_good_report_passes_and_lists_every_policy(good: dict[str, Any]) -> None:
    assert failing(good) == []
    text = report.markdown(good, rules.check(good))
    assert all(f"| {policy} |" in text for policy in rules.POLICIES)
    assert "| 95.0 % | 90.0 % | 80.0 % |" in text


def test_the_best_fixed_placement_holds_the_most_touched_pages() -> None:
    # 10 pages x 1 touch + 4 pages x 3 touches + 1 page x 5 touches = 27 touches
    touches = [7, 10, 0, 4, 0, 1]
    assert rules.best_fixed_share(touches, 0) == 0.0
    assert rules.best_fixed_share(touches, 1) == pytest.approx(5 / 27)
    assert rules.best_fixed_share(touches, 3) == pytest.approx(11 / 27)
    assert rules.best_fixed_share(touches, 6) == pytest.approx(18 / 27)
    assert rules.best_fixed_share(touches, 99) == 1.0


@pytest.mark.parametrize(
    ("policy", "field", "value", "rule"),
    [
        ("first-touch", "fast_share", 0.61, "first-touch <= 60 %"),
        ("first-touch", "peak_fast_bytes", 46 * MIB, "first-touch: tensors on node 0"),
        ("kernel tiering", "peak_fast_bytes", 46 * MIB, "kernel tiering: tensors on node 0"),
        ("all-slow", "losses", ["0x1p+1", "0x1.1p+0"], "all-slow: same losses"),
        ("all-slow", "losses", [], "all-slow: same losses"),
    ],
)
def test_a_broken_run_fails_its_rule(
    good: dict[str, Any], policy: str, field: str, value: Any, rule: str
) -> None:
    found = rules.run_of(good, policy)
    assert found is not None
    found[field] = value
    (failed,) = failing(good)
    assert failed.startswith(rule)


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (step(charged=43 * MIB + 1), "sentineld's charge"),
        (step(share=0.899), "sentineld serves >= 90 %"),
        (step(moved=0), "sentineld moves"),
    ],
)
def test_one_bad_step_of_sentineld_fails_the_rule(
    good: dict[str, Any], broken: dict[str, Any], rule: str
) -> None:
    sentineld(good)["metered_steps"][2] = broken
    (failed,) = failing(good)
    assert failed.startswith(rule)


def test_the_bound_replaces_the_goal_only_if_it_is_lower(good: dict[str, Any]) -> None:
    low = copy.deepcopy(good)
    low["bound_fast_share"] = 0.8
    for metered in sentineld(low)["metered_steps"]:
        metered["fast_share"] = 0.77
    assert failing(low) == []
    low["bound_fast_share"] = 0.85
    assert len(failing(low)) == 1


def test_a_missing_run_fails(good: dict[str, Any]) -> None:
    del good["runs"][1]
    assert failing(good) == ["every policy ran"]


def test_a_workload_that_a_fixed_placement_serves_fails(good: dict[str, Any]) -> None:
    good["best_fixed_share"] = 0.76
    good["touched_bytes"] = good["peak_bytes"] // 2
    assert failing(good) == ["a step touches >= 80 % of the peak", "best fixed placement <= 75 %"]
