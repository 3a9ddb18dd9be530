# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of noise in the stretch times under `auto`: `python -m tests.bench.noise`.

A benchmark cell combines a trace, a preset and a fast fraction, as in tests.bench.policies. Each
cell is planned once, then simulated without noise and with several noise seeds. Writes
build/bench/noise.json and prints a table. By chance, a seed's noise can make the average step
slower or faster even with all data in fast memory. The all-fast times under the same noise measure
this effect, and the table also states the cost of noise without this effect.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

import numpy as np

from sentineld.host.presets import preset_tiers
from sentineld.model.profile import Profile
from sentineld.policies.bounds.step_time import bound_seconds
from sentineld.policies.registry import names, policy
from sentineld.simulate.disturbance import Disturbance
from sentineld.simulate.simulate import Outcome, simulate
from tests.bench.figures import table
from tests.bench.policies import BENCH, add_cell_options, chosen_cells, step_of
from tests.bench.policy_figures import Row, claim, geometric_mean
from tests.bench.results import write

NOISE = 0.25
STEPS = 40
SEEDS = 4
POINTS_MAX = 2.0

Job = tuple[Path, str, float, str, int]


def cell_row(job: Job) -> Row:
    """Simulate one benchmark cell; return the step times, in seconds: one without noise, and one
    for each seed."""
    trace, tiers_name, fraction, name, seeds = job
    profile, threads = step_of(trace)
    tiers, budget_bytes = preset_tiers(tiers_name, threads), int(profile.peak_bytes * fraction)
    plan = policy(name).plan(profile, tiers, budget_bytes)

    def run(disturbance: Disturbance) -> Outcome:
        return simulate(
            profile, policy(name), tiers, budget_bytes, disturbance, steps_max=STEPS, plan=plan
        )

    noises = [Disturbance(noise=NOISE, seed=seed) for seed in range(1, seeds + 1)]
    disturbed = [run(noise) for noise in noises]
    return {
        "trace": trace.stem,
        "tiers": tiers_name,
        "fast_fraction": fraction,
        "policy": name,
        "bound_seconds": bound_seconds(profile, tiers, budget_bytes),
        "step_seconds": run(Disturbance()).step_seconds,
        "noisy_seconds": [found.step_seconds for found in disturbed],
        "drawn_seconds": [_drawn_s(profile, noise) for noise in noises],
        "stall_seconds": [found.stall_seconds for found in disturbed],
        "corrections": [found.corrections for found in disturbed],
        "note": "; ".join(plan.notes),
    }


def _drawn_s(profile: Profile, noise: Disturbance) -> float:
    """Return the mean time in seconds by which this noise lengthens an all-fast step. The mean is
    over the second half of the steps, which simulate() counts as steady."""
    times_ns = profile.stretches["time_ns"].astype(np.float64)
    factors = noise.steps(profile.stretch_count, 1)
    drawn = [factors.next() for _ in range(STEPS)][STEPS // 2 :]
    return fmean(float(times_ns @ (one - 1.0)) for one in drawn if one is not None) / 1e9


def _quiet_s(row: Row) -> float:
    return float(row["step_seconds"])


def _noisy_s(row: Row) -> float:
    return fmean(row["noisy_seconds"])


def _paced_s(row: Row) -> float:
    return _noisy_s(row) - fmean(row["drawn_seconds"])


def summary(rows: Sequence[Row]) -> Row:
    """Return geometric means, over the cells of `rows`, of the step time divided by the bound.

    quiet, noisy: steps without and with noise.
    paced: noisy steps, minus the time by which the noise lengthens the all-fast step.
    points: noisy minus quiet; paced_points: paced minus quiet. Both are in hundredths of the bound.
    """
    quiet, noisy, paced = (
        geometric_mean(seconds(row) / row["bound_seconds"] for row in rows)
        for seconds in (_quiet_s, _noisy_s, _paced_s)
    )
    if quiet is None or noisy is None or paced is None:
        raise ValueError("no cells")
    return {
        "quiet": quiet,
        "noisy": noisy,
        "paced": paced,
        "points": 100 * (noisy - quiet),
        "paced_points": 100 * (paced - quiet),
    }


def main() -> None:
    """Simulate all chosen cells; write the result file and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_cell_options(parser)
    parser.add_argument("-o", "--output", type=Path, default=BENCH / "noise.json")
    parser.add_argument("--policy", choices=names(), default="auto")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    jobs: list[Job] = [
        (*cell, arguments.policy, arguments.seeds) for cell in chosen_cells(arguments)
    ]
    rows: list[Row] = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(cell_row, jobs):
            rows.append(row)
            print(f"{len(rows)}/{len(jobs)} cells: {row['trace']}, {row['tiers']}", flush=True)
            write(arguments.output, {"noise": NOISE, "rows": rows, "geomean": summary(rows)})
    by_trace = {model: [row for row in rows if row["trace"] == model] for model in arguments.models}
    names_of = ["quiet", "noisy", "paced", "points", "paced_points"]
    lines = [
        [name, *(f"{value:.4f}" for value in found[:3]), *(f"{value:.2f}" for value in found[3:])]
        for name, found in (
            (name, list(summary(some).values()))
            for name, some in [*by_trace.items(), ("all", rows)]
        )
    ]
    print("\n" + table(["step over bound", *names_of], lines))
    points = summary(rows)["points"]
    what = f"noise of {NOISE:.0%} costs {arguments.policy} at most {POINTS_MAX:g} points"
    print("\n" + claim(f"{what} ({points:.2f})", points <= POINTS_MAX))
    print(f"\nwrote {arguments.output}")


if __name__ == "__main__":
    main()
