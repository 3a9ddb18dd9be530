# SPDX-License-Identifier: Apache-2.0
"""The rules of the demo's second part: a rule fails if a run breaks it."""

from __future__ import annotations

import copy
from pathlib import Path
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


def run(policy: str, share: float, seconds: float, steps: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "policy": policy,
        "fast_share": share,
        "moved_bytes": 0,
        "peak_fast_bytes": 42 * MIB,
        "step_seconds": [seconds, 1.3 * seconds, 0.9 * seconds, seconds, seconds],
        "losses": ["0x1p+1", "0x1p+0"],
        "metered_steps": [step(share) for _ in range(steps)],
        "plugin": None,
        **more,
    }


@pytest.fixture
def good() -> dict[str, Any]:
    counted = {"tensor_fast_share": 0.9, "machine_fast_share": 0.8}
    runs = [
        run("all-fast", 1.0, 0.8),
        run("all-slow", 0.0, 1.9),
        run("first-touch", 0.2, 1.7),
        run("kernel tiering", 0.3, 1.5, settled=True),
        run("kernel tiering", 0.2, 1.8, settled=True),
        run("kernel tiering", 0.5, 1.4, settled=True),
        run("sentineld", 0.95, 1.0, steps=4, plan={"bound": {"fast_share": 0.97}}, plugin=counted),
    ]
    done = {
        "peak_bytes": 215 * MIB,
        "budget_bytes": 43 * MIB,
        "reserve_bytes": MIB,
        "timed_steps": 5,
        "warm_up_steps": 20,
        "unmanaged_losses": ["0x1p+1", "0x1p+0", "0x1p-1"],
        "clocked": {
            "measured_bytes_per_s": 495e6,
            "assumed_bytes_per_s": 272e6,
            "dilation": 11.0,
        },
    }
    return report.assemble(runs, done, modelled=True, machine="a test")


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
    assert "| sentineld | 1 | 1.000 s | 0.900 s to 1.300 s | 95.0 % | 90.0 % | 80.0 % |" in text


def test_several_runs_of_a_policy_are_a_range(good: dict[str, Any]) -> None:
    (line,) = [line for line in report.table(good).splitlines() if "| kernel tiering |" in line]
    cells = [cell.strip() for cell in line.split("|")[2:]]
    assert cells[:4] == ["3", "1.400 s to 1.800 s", "1.260 s to 2.340 s", "20.0 % to 50.0 %"]


def test_the_report_says_whose_clock_the_times_are_of(good: dict[str, Any]) -> None:
    assert any("modelled clock" in note for note in good["notes"])
    real = report.assemble(
        good["runs"],
        {**{key: good[key] for key in ("peak_bytes", "budget_bytes")}, "clocked": {}},
        modelled=False,
    )
    assert not any("modelled clock" in note for note in real["notes"])


def test_the_picture(good: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tests.demo import picture

    sentineld(good)["metered_steps"][-1]["stretches"] = [{"resident_bytes": [MIB, MIB]}] * 2
    picture.draw(good, tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


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
        ("sentineld", "step_seconds", [1.0] * 4, "at least 5 steps of each run were timed"),
        ("first-touch", "step_seconds", [1.0] * 5, "sentineld's median step is faster than that "),
        ("kernel tiering", "settled", False, "sentineld and kernel tiering had settled"),
        ("sentineld", "settled", False, "sentineld and kernel tiering had settled"),
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


@pytest.mark.parametrize(
    ("share", "bound", "failures"),
    [
        (0.77, 0.8, 0),
        (0.77, 0.85, 1),
        # SHARE_OF_BOUND_MIN times the bound is 0.95 x 0.92 = 0.874: below SENTINELD_MIN, so it is
        # the goal.
        (0.88, 0.92, 0),
        (0.87, 0.92, 1),
        # 0.95 x 0.96 = 0.912 is above SENTINELD_MIN, so the goal stays 0.90.
        (0.905, 0.96, 0),
        (0.899, 0.96, 1),
    ],
)
def test_a_share_of_the_bound_replaces_the_goal_only_if_it_is_lower(
    good: dict[str, Any], share: float, bound: float, failures: int
) -> None:
    low = copy.deepcopy(good)
    low["bound_fast_share"] = bound
    for metered in sentineld(low)["metered_steps"]:
        metered["fast_share"] = share
    assert len(failing(low)) == failures


def test_a_low_bound_does_not_excuse_a_share_below_that_of_a_fixed_placement(
    good: dict[str, Any],
) -> None:
    good["bound_fast_share"] = 0.5
    for metered in sentineld(good)["metered_steps"]:
        metered["fast_share"] = good["best_fixed_share"] - 0.01
    assert failing(good) == ["sentineld serves more from fast memory than the best fixed placement"]


def test_the_report_names_the_measured_and_the_assumed_bandwidth(good: dict[str, Any]) -> None:
    text = report.markdown(good, rules.check(good))
    assert (
        "bandwidth of 272 MB/s (measured with idle pages: 495 MB/s; the guest's time is 11.0"
        in text
    )


def test_sentineld_must_be_faster_than_each_run_of_kernel_tiering(good: dict[str, Any]) -> None:
    rules.runs_of(good, "kernel tiering")[2]["step_seconds"] = [3.0, 3.0, 0.9, 0.9, 0.9]
    assert failing(good) == [
        "sentineld's median step is faster than that of each run of kernel tiering"
    ]


def test_two_runs_of_kernel_tiering_are_too_few(good: dict[str, Any]) -> None:
    good["runs"].remove(rules.runs_of(good, "kernel tiering")[1])
    assert failing(good) == ["kernel tiering ran at least 3 times"]


def test_a_missing_run_fails(good: dict[str, Any]) -> None:
    del good["runs"][1]
    assert failing(good) == ["every policy ran"]


def test_a_workload_that_a_fixed_placement_serves_fails(good: dict[str, Any]) -> None:
    good["best_fixed_share"] = 0.76
    good["touched_bytes"] = good["peak_bytes"] // 2
    assert failing(good) == ["a step touches >= 80 % of the peak", "best fixed placement <= 75 %"]
