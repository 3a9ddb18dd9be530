# SPDX-License-Identifier: Apache-2.0
"""Compares the division of a shared budget with the best one: `python -m tests.bench.sharing`.

Each trace is simulated at budgets of 5, 10, ... 100 % of its peak, up to the first budget at which
the step is not slower than with fast memory only. From these points, an exhaustive search finds the
best static division for each pair and each set of four traces, at several sizes of the shared
budget. The tested division is that of sentineld/plan/division.py, which computes it from the
slowdowns at a few budgets only (CURVE_SHARES in that file). Slowdowns at budgets between the
simulated points are interpolated. For each tested division, its sum of slowdowns is divided by that
of the best division. The CHECKED divisions with the largest quotients are also simulated at exactly
their budgets.
Writes build/bench/sharing.json. The exit status is 1 if a goal is missed, and 2 if there is no
division to compare.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations
from pathlib import Path

import numpy as np

from sentineld.base.errors import SentinelError
from sentineld.host.presets import preset_tiers
from sentineld.plan.division import (
    ALL_FAST,
    SLOWDOWN_MAX,
    Curve,
    Member,
    Terms,
    curve_of,
    divide,
    equal_shares,
)
from sentineld.policies.registry import policy
from sentineld.simulate.simulate import simulate
from tests.bench.figures import table
from tests.bench.models import MODELS
from tests.bench.policies import BENCH, record_missing, step_of
from tests.bench.policy_figures import Row, claim
from tests.bench.results import say, write
from tests.bench.traces import TRACES

POLICY = "auto"
TIERS = "cxl"
STEP = 0.05
SIZES = (0.1, 0.2, 0.3, 0.5)
"""Shared budgets, as shares of the sum of the peaks."""
COUNTS = (2, 4)
BEST_MAX = 1.05
EQUAL_MAX = 1.002
"""Limit on the sum of slowdowns, divided by the sum with equal shares. Because the slowdowns are
interpolated, a division that is as good as equal shares can seem slightly worse."""
CHECKED = 4
"""Number of divisions that are also simulated at exactly their budgets."""


def slowdown(trace: Path, budget_bytes: int) -> float:
    """The simulated slowdown of a steady step; infinite if the policy has no plan."""
    profile, threads = step_of(trace)
    try:
        found = simulate(profile, policy(POLICY), preset_tiers(TIERS, threads), budget_bytes)
    except SentinelError:
        return math.inf
    return found.step_seconds / found.fast_only_seconds


def fine_curve(trace: Path) -> Curve:
    """The slowdowns at budgets that are multiples of STEP times the peak, up to the first budget at
    which the step is not slower than with fast memory only."""
    peak_bytes = step_of(trace)[0].peak_bytes
    budgets, slowdowns = [], []
    for at in range(1, round(1 / STEP) + 1):
        budgets.append(int(at * STEP * peak_bytes))
        slowdowns.append(slowdown(trace, budgets[-1]))
        if slowdowns[-1] < ALL_FAST:
            break
    return Curve(tuple(budgets), tuple(slowdowns))


def best_sum(curves: Sequence[Curve], size_bytes: int) -> float:
    """The least sum of slowdowns over all divisions of size_bytes in which each trace's share is a
    budget of its curve; infinite if there is no such division."""
    used, sums = np.zeros(1), np.zeros(1)
    for curve in curves:
        used = (used[:, None] + np.array(curve.budgets_bytes)).ravel()
        sums = (sums[:, None] + np.array(curve.slowdowns)).ravel()
        fits = used <= size_bytes
        used, sums = used[fits], sums[fits]
    return float(sums.min(initial=math.inf))


def division_row(
    models: Sequence[str], share: float, fine: Mapping[str, Curve], peaks: Mapping[str, int]
) -> Row:
    """Divide a shared budget among traces; compare with the best division and equal shares."""
    curves = [fine[model] for model in models]
    size_bytes = int(share * sum(peaks[model] for model in models))
    members = [
        Member(
            Terms(),
            curve_of(
                lambda budgets, curve=curve: curve.at(budgets[:1]).tolist(),
                peaks[model],
                size_bytes,
            ),
        )
        for model, curve in zip(models, curves, strict=True)
    ]
    shares, equal = divide(size_bytes, members), equal_shares(size_bytes, members)

    def slowdowns(division: Iterable[int]) -> list[float]:
        return [float(curve.at([one])[0]) for curve, one in zip(curves, division, strict=True)]

    own, before = slowdowns(shares), slowdowns(equal)
    return {
        "traces": list(models),
        "size_share": share,
        "size_bytes": size_bytes,
        "shares_bytes": shares,
        "equal_bytes": equal,
        "slowdowns": own,
        "equal_slowdowns": before,
        "sum": sum(own),
        "best_sum": best_sum(curves, size_bytes),
        "equal_sum": sum(before),
        "worst_relative": max(
            (one / other for one, other in zip(own, before, strict=True) if other < math.inf),
            default=1.0,
        ),
    }


def simulated_sum(row: Row, folder: Path) -> float:
    """The sum of the slowdowns, simulated at exactly the budgets of the division."""
    return sum(
        slowdown(folder / f"{model}.npz", budget)
        for model, budget in zip(row["traces"], row["shares_bytes"], strict=True)
    )


def main() -> None:
    """Simulate the traces, divide, write the result file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path, default=BENCH / "sharing.json")
    arguments = parser.parse_args()
    folder, models = arguments.traces, arguments.models
    if len(models) < min(COUNTS):
        parser.error(f"--models: at least {min(COUNTS)} models are needed to divide a budget")
    record_missing(folder, models)
    paths = [folder / f"{model}.npz" for model in models]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        fine = dict(zip(models, pool.map(fine_curve, paths), strict=True))
    peaks = {model: step_of(path)[0].peak_bytes for model, path in zip(models, paths, strict=True)}
    rows = [
        division_row(chosen, share, fine, peaks)
        for count in COUNTS
        for chosen in combinations(models, count)
        for share in SIZES
    ]
    possible = possible_rows(rows)
    if not possible:
        say("error: every shared budget is too small for the traces: some trace has no plan")
        sys.exit(2)
    for row in possible[:CHECKED]:
        row["simulated_sum"] = simulated_sum(row, folder)
    goals = goals_of(possible)
    curves = {model: [curve.budgets_bytes, curve.slowdowns] for model, curve in fine.items()}
    write(
        arguments.output, json.loads(json.dumps({"goals": goals, "curves": curves, "rows": rows}))
    )
    print(f"{len(possible)} divisions; those with the largest sums, relative to the best sum:")
    print(report(possible[:CHECKED]))
    for text, holds in goals.items():
        print(claim(text, holds))
    print(f"\nwrote {arguments.output}")
    sys.exit(0 if all(goals.values()) else 1)


def possible_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows for which some division gives each trace a plan, sorted by the tested division's sum
    of slowdowns divided by that of the best division; the largest quotient comes first."""
    found = [row for row in rows if row["best_sum"] < math.inf]
    return sorted(found, key=lambda row: row["sum"] / row["best_sum"], reverse=True)


def goals_of(rows: Sequence[Row]) -> dict[str, bool]:
    """The goals, with the measured values in their texts, and whether each holds. rows: at least
    one."""
    best = max(max(row["sum"], row.get("simulated_sum", 0.0)) / row["best_sum"] for row in rows)
    equal = max(row["sum"] / row["equal_sum"] for row in rows)
    relative = max(row["worst_relative"] for row in rows)
    return {
        f"the sum of slowdowns is at most {BEST_MAX:g} x the best division's ({best:.4f})":
            best <= BEST_MAX,
        f"it is not larger than with equal shares ({equal:.4f})": equal <= EQUAL_MAX,
        f"no slowdown exceeds {SLOWDOWN_MAX:g} x that with an equal share ({relative:.4f})":
            relative <= SLOWDOWN_MAX * EQUAL_MAX,
    }  # fmt: skip


def report(rows: Sequence[Row]) -> str:
    """Format a line per division."""
    return table(
        ["sum of slowdowns", "shared", "division", "simulated", "best", "equal"],
        [
            [
                ", ".join(row["traces"]),
                f"{row['size_share']:.0%}",
                *(f"{row[key]:.4f}" for key in ("sum", "simulated_sum", "best_sum", "equal_sum")),
            ]
            for row in rows
        ],
    )


if __name__ == "__main__":
    main()
