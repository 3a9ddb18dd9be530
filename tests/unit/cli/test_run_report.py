# SPDX-License-Identifier: Apache-2.0
"""The lines that `sentinelctl run` prints about a process."""

from __future__ import annotations

from typing import Any

from sentineld.cli.run_report import ProcessReport

WAITING: dict[str, Any] = {"pid": 7, "state": "planning", "reason": "a\x1bb", "step": 4}
MANAGED: dict[str, Any] = {
    "pid": 7,
    "state": "managed",
    "reason": "the plan is live",
    "policy": "auto",
    "budget_bytes": 3 << 20,
    "resident_bytes": [1 << 20, 2 << 20],
    "promoted_bytes": 5 << 20,
    "demoted_bytes": 4 << 20,
    "diverged_steps": 2,
    "step": 10,
    "fast_share": None,
    "predicted_fast_share": 0.875,
    "predicted_step_ns": 250_000_000,
}
SECOND_NS = 1_000_000_000


def test_the_first_plan_is_reported_once() -> None:
    report = ProcessReport()
    assert report.update(WAITING, 0) is None
    assert report.update(MANAGED, SECOND_NS) == (
        "process 7 is managed: policy auto, 3.0 MiB fast, predicted step 0.2500 s, "
        "predicted fast share 87.5%"
    )
    assert report.update(MANAGED, 2 * SECOND_NS) is None
    assert report.update(WAITING, 3 * SECOND_NS) is None
    assert report.update(MANAGED, 4 * SECOND_NS) is None


def test_the_summary_has_the_mean_time_of_the_steps_under_a_plan() -> None:
    report = ProcessReport()
    report.update({**MANAGED, "step": 5}, 0)
    report.update({**WAITING, "step": 9}, 100 * SECOND_NS)
    report.update(MANAGED, 101 * SECOND_NS)
    report.update(MANAGED, 102 * SECOND_NS)
    report.update({**MANAGED, "step": 14, "fast_share": 0.9}, 103 * SECOND_NS)
    # The step counter is still 14, so the time of step 15 is unknown.
    report.update({**MANAGED, "step": 14, "fast_share": 0.9}, 104 * SECOND_NS)
    assert report.summary() == (
        "process 7: 14 steps; fast share 90.0% (predicted 87.5%); step 0.5000 s (predicted "
        "0.2500 s); moved 5.0 MiB up and 4.0 MiB down; 2 diverged steps"
    )


def test_the_summary_after_a_detach_has_the_figures_of_the_plan() -> None:
    report = ProcessReport()
    report.update(MANAGED, 0)
    report.update({**MANAGED, "step": 12}, SECOND_NS)
    detached = {**WAITING, "state": "registered", "promoted_bytes": 6 << 20, "step": 20}
    report.update(detached, 9 * SECOND_NS)
    assert report.summary() == (
        "process 7: 20 steps; fast share not metered (predicted 87.5%); step 0.5000 s (predicted "
        "0.2500 s); moved 6.0 MiB up and 0 B down; 0 diverged steps"
    )


def test_unknown_figures_are_named_as_such() -> None:
    report = ProcessReport()
    report.update({**MANAGED, "predicted_step_ns": None}, 0)
    assert "fast share not metered" in report.summary()
    assert "step unknown (predicted unknown)" in report.summary()


def test_the_summary_of_an_unmanaged_process_has_its_state() -> None:
    report = ProcessReport()
    report.update(WAITING, 0)
    assert report.summary() == "process 7: 4 steps, never managed; last state planning: a?b"
