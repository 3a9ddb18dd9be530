# SPDX-License-Identifier: Apache-2.0
"""Evaluates the steps that bench-lengths has measured: computes rows, checks the goals, and formats
the rows as a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from tests.bench.figures import table
from tests.bench.goals import at_least, at_most

Json = dict[str, Any]

FIRST_TOUCH, OURS = "first-touch", "auto"
FOLLOWED_MIN = 0.95
OWN_MAX = 1.03
"""Limit for the time that steps of eight lengths take under one plan, divided by the time that they
take if each length has a plan of its own."""
GAIN_SHARE_MIN = 0.5
"""Lower limit for the ratio of two gains of `auto` over first-touch: the gain with dynamic padding,
divided by the gain with a fixed length."""


class Timed(NamedTuple):
    """A measured step."""

    length: int
    seconds: float


def by_length(steps: Sequence[Timed]) -> dict[int, float]:
    """The median step time in seconds of each length."""
    found: defaultdict[int, list[float]] = defaultdict(list)
    for step in steps:
        found[step.length].append(step.seconds)
    return {length: median(times) for length, times in sorted(found.items())}


def gain(first_touch: Sequence[Timed], ours: Sequence[Timed]) -> float:
    """How much longer steps of the same lengths take under first-touch than under `auto`; 0.5 means
    50 %."""
    return fmean(step.seconds for step in first_touch) / fmean(step.seconds for step in ours) - 1


def summarise(
    steps: Mapping[tuple[str, str], Sequence[Timed]], diverged: Mapping[tuple[str, str], int]
) -> Json:
    """Compute the rows and check the goals.

    steps: the measured steps of each training, by lengths and policy. In trainings that differ only
    in the policy, the steps have the same sequence lengths in the same order.
    diverged: how many of these steps diverged, by lengths and policy.
    """
    rows = [
        {
            "lengths": lengths,
            "policy": policy,
            "steps": len(timed),
            "diverged_steps": diverged[lengths, policy],
            "mean_seconds": round(fmean(step.seconds for step in timed), 5),
            "seconds_by_length": {
                length: round(seconds, 5) for length, seconds in by_length(timed).items()
            },
        }
        for (lengths, policy), timed in steps.items()
    ]
    return {"rows": rows, "goals": goals(steps, diverged)}


def goals(
    steps: Mapping[tuple[str, str], Sequence[Timed]], diverged: Mapping[tuple[str, str], int]
) -> Json:
    """The goals for which all necessary trainings were measured."""
    found: Json = {}
    fixed = {lengths: timed for (lengths, policy), timed in steps.items() if lengths.isdigit()}
    largest = max(fixed, key=int, default="")
    for lengths in ("eight", "padded"):
        if (lengths, OURS) in steps:
            share = 1 - diverged[lengths, OURS] / len(steps[lengths, OURS])
            found[f"{lengths}: share of steps that follow the plan"] = at_least(share, FOLLOWED_MIN)
    if ("eight", OURS) in steps and len(fixed) > 1:
        ours = by_length(steps["eight", OURS])
        own = {int(one): median(step.seconds for step in steps[one, OURS]) for one in fixed}
        # With few rounds, the random lengths of the steps may not include every length.
        drawn = ours.keys() & own
        over = sum(ours[length] for length in drawn) / sum(own[length] for length in drawn)
        found["eight: time over that under plans of their own"] = at_most(over, OWN_MAX)
    wanted = [(one, name) for one in ("padded", largest) for name in (FIRST_TOUCH, OURS)]
    if all(one in steps for one in wanted):
        varying, constant = (
            gain(steps[one, FIRST_TOUCH], steps[one, OURS]) for one in ("padded", largest)
        )
        found["padded: gain over first-touch, as a share of the gain with one length"] = at_least(
            varying / constant, GAIN_SHARE_MIN
        )
    return found


def text(summary: Json) -> str:
    """The rows as a table."""
    heads = ["lengths", "policy", "steps", "diverged", "mean step s"]
    lines = [
        [
            row["lengths"],
            row["policy"],
            str(row["steps"]),
            str(row["diverged_steps"]),
            f"{row['mean_seconds']:.3f}",
        ]
        for row in summary["rows"]
    ]
    return table(heads, lines)
