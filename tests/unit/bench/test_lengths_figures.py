# SPDX-License-Identifier: Apache-2.0
"""The goals that bench-lengths computes from the measured steps."""

from __future__ import annotations

import pytest

from tests.bench.lengths.figures import Timed, by_length, gain, summarise

STEPS = {
    ("eight", "auto"): [Timed(64, 1.0), Timed(256, 4.0), Timed(64, 1.2), Timed(64, 5.0)],
    ("64", "auto"): [Timed(64, 1.0), Timed(64, 1.0)],
    ("256", "auto"): [Timed(256, 4.0), Timed(256, 4.0), Timed(256, 9.0)],
    ("256", "first-touch"): [Timed(256, 6.0)] * 2,
    ("padded", "auto"): [Timed(100, 2.0), Timed(200, 3.0)],
    ("padded", "first-touch"): [Timed(100, 3.0), Timed(200, 4.0)],
}
DIVERGED = dict.fromkeys(STEPS, 0) | {("eight", "auto"): 1}


def test_times_are_compared_length_by_length() -> None:
    assert by_length(STEPS["eight", "auto"]) == {64: 1.2, 256: 4.0}
    goals = summarise(STEPS, DIVERGED)["goals"]
    assert goals["eight: share of steps that follow the plan"]["value"] == 0.75
    assert not goals["eight: share of steps that follow the plan"]["holds"]
    assert goals["padded: share of steps that follow the plan"]["holds"]
    over = goals["eight: time over that under plans of their own"]
    assert over["value"] == pytest.approx(5.2 / 5.0)
    assert not over["holds"]


def test_the_gain_is_that_of_the_same_steps() -> None:
    assert gain(STEPS["padded", "first-touch"], STEPS["padded", "auto"]) == pytest.approx(0.4)
    goals = summarise(STEPS, DIVERGED)["goals"]
    share = goals["padded: gain over first-touch, as a share of the gain with one length"]
    constant = 6.0 / (17.0 / 3) - 1
    assert share["value"] == pytest.approx(0.4 / constant, rel=1e-4)


def test_what_was_not_measured_has_no_goal() -> None:
    some = {("padded", "auto"): STEPS["padded", "auto"]}
    summary = summarise(some, DIVERGED)
    assert list(summary["goals"]) == ["padded: share of steps that follow the plan"]
    assert [row["mean_seconds"] for row in summary["rows"]] == [2.5]
